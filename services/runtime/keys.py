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


def member_key(service: ServiceName, member: str) -> str:
    """`MemberSeen`, by each member for itself."""
    return f"{MEMBERS}{service}.{member}"
