"""The one error of this package."""


class PrepareError(RuntimeError):
    """A model or data set could not be made; the message says what to do."""
