"""How a bus is set: its sizes, windows and waits."""

from dataclasses import dataclass, field

from bus.credentials import Credentials
from bus.port import LeaseTerms
from bus.tls import TlsFiles

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

HEADER_ROOM_BYTES = 64 * KIB
"""Kept free under the server's payload limit: the client does not count header bytes, the server does, and a
violation closes the connection for good."""


@dataclass(frozen=True)
class BusSettings:
    """Everything about a bus that a configuration may change. Sizes in bytes, times in seconds.

    With `credentials` the connection speaks for their role, and streams are for the admin alone to declare.
    """

    dedupe_window_s: float = 600.0
    max_experience_bytes: int = 2 * GIB
    max_payload_bytes: int = 8 * MIB
    spill_bytes: int = 4 * MIB
    connect_timeout_s: float = 10.0
    terms: LeaseTerms = field(default_factory=LeaseTerms)
    weights_kept: int = 4096
    metrics_bytes: int = 256 * MIB
    request_timeout_s: float = 5.0
    replicas: int = 1
    credentials: Credentials | None = None
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        largest = self.max_payload_bytes - HEADER_ROOM_BYTES
        if self.spill_bytes > largest:
            raise ValueError(
                f"bus.spill_bytes={self.spill_bytes} leaves no room for headers under "
                f"bus.max_payload_bytes={self.max_payload_bytes}: use at most {largest}"
            )
