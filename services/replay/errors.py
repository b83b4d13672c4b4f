"""The one error of this package: a past stream cannot be read, carried or replayed as asked."""


class ReplayError(Exception):
    """Says what is wrong, where, and what to do."""
