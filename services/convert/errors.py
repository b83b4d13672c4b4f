"""The errors of a conversion."""


class ConversionError(Exception):
    """What was given cannot be converted; the message says what is wrong and what to do."""
