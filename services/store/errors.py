"""What can go wrong with a store.

StoreError          a store that is misnamed, unreadable, or holds something else: trying again does not help
    StoreBusy       a store that is locked, full or away for now: the same call may work later
"""


class StoreError(Exception):
    """A store that cannot be used; the message says what to change."""


class StoreBusy(StoreError):
    """A store that cannot be used for now; the message is the store's own reason."""
