"""The errors of the bus. Foreign errors become one of these at the boundary.

BusError
├── BusUnavailable     no server answers, or the connection is closed for good
├── BusRefused         the server refuses for a lasting reason (permission, configuration, size)
├── StreamFull         the stream or the store has no room (back-pressure)
├── PublishTimeout     no acknowledgement within the deadline; the message may still be stored
├── LeaseLost          the lease is held by somebody else, or its term was superseded
├── RevisionConflict   a compare-and-set met another revision
└── BlobMissing        chunks of a blob are absent or do not match its digest
"""


class BusError(Exception):
    """Anything that the bus could not do."""


class BusUnavailable(BusError):
    """No server answers at the address, or the connection is closed for good."""


class BusRefused(BusError):
    """The server refuses for a lasting reason: a permission, a configuration, a size."""


class StreamFull(BusError):
    """The stream or the server's store has no room. Publishers wait; nothing is dropped."""


class PublishTimeout(BusError):
    """No acknowledgement within the deadline. The message may still be stored: retry with the same id."""


class LeaseLost(BusError):
    """The lease is held by somebody else, or its term was superseded."""


class RevisionConflict(BusError):
    """A compare-and-set met another revision than the one it expected."""


class BlobMissing(BusError):
    """Chunks of a blob are absent, or do not match its digest."""
