"""The keys of a run's key-value store, each with the one service that writes it."""

from schemas.reports import ServiceName

DECLARED = "declared"
"""`RunDeclared`, by whoever joins first."""

RELEASE = "release"
"""`ReleaseProgress`, by the leading synchronizer."""

TRAIN = "train"
"""`TrainProgress`, by the trainer."""

INCARNATION = "incarnation"
"""`IncarnationTaken`, by the trainer, at its start."""

LEADER = "synchronizer"
"""The lease of the leading synchronizer."""

MEMBERS = "member."

OFFERS = "taskset."

EXCUSES = "excused."

RECEIPTS = "settled."


def offer_key(taskset: str) -> str:
    """`TasksetOffered`, by the explorer that brings the taskset."""
    return f"{OFFERS}{taskset}"


def excuse_key(ordinal: int) -> str:
    """`TaskExcused`, by the explorers that have handed the task back."""
    return f"{EXCUSES}{ordinal}"


def member_key(service: ServiceName, member: str) -> str:
    """`MemberSeen`, by each member for itself."""
    return f"{MEMBERS}{service}.{member}"


def receipt_key(stream: str, sequence: int | None = None) -> str:
    """`Quarantined` without its payload, by `trinity quarantine retry|drop`. Without `sequence`, the prefix of all."""
    return f"{RECEIPTS}{stream}." if sequence is None else f"{RECEIPTS}{stream}.{sequence}"
