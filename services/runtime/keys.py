"""The keys of a run's key-value store, each with the one service that writes it."""

from schemas.reports import ServiceName

DECLARED = "declared"
"""`RunDeclared`, by whoever joins first."""

RELEASE = "release"
"""`ReleaseProgress`, by the leading synchronizer."""

TRAIN = "train"
"""`TrainProgress`, by the trainer."""

STORED = "stored"
"""`StoreProgress`, by the monitor, where the configuration names stores."""

INCARNATION = "incarnation"
"""`IncarnationTaken`, by the trainer, at its start."""

LEADER = "synchronizer"
"""The lease of the leading synchronizer."""

MEMBERS = "member."

OFFERS = "taskset."

CHOICES = "chosen."

EXCUSES = "excused."

RECEIPTS = "settled."

FINISHED = "served.finished."

SLOTS = "served.slot."


def offer_key(taskset: str) -> str:
    """`TasksetOffered`, by the explorer that brings the taskset."""
    return f"{OFFERS}{taskset}"


def choice_key(taskset: str) -> str:
    """`RowsChosen`, by the leading synchronizer, of a taskset whose rows are chosen by pass rates."""
    return f"{CHOICES}{taskset}"


def excuse_key(ordinal: int) -> str:
    """`TaskExcused`, by the explorers that have handed the task back."""
    return f"{EXCUSES}{ordinal}"


def finished_key(history: str) -> str:
    """`ConversationsFinished`, by the serving explorers that have the history."""
    return f"{FINISHED}{history}"


def slot_key(ordinal: int) -> str:
    """`SlotClaimed`, by the serving explorer that is about to answer the task."""
    return f"{SLOTS}{ordinal}"


def member_key(service: ServiceName, member: str) -> str:
    """`MemberSeen`, by each member for itself."""
    return f"{MEMBERS}{service}.{member}"


def receipt_key(stream: str, sequence: int | None = None) -> str:
    """`Quarantined` without its payload, by `trinity quarantine retry|drop`. Without `sequence`, the prefix of all."""
    return f"{RECEIPTS}{stream}." if sequence is None else f"{RECEIPTS}{stream}.{sequence}"
