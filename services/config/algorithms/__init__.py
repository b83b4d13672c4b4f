"""The algorithms as data: their types, parts, arguments and defaults. Imports no torch."""
