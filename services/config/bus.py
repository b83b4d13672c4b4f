"""What may change about the message bus: where it is, and how much it holds."""

from services.config.section import Section

MIB = 1024 * 1024
GIB = 1024 * MIB


class BusConfig(Section):
    """The bus of a run; with no `url` (and no TRINITY_BUS_URL) a local one is started under the run's directory."""

    url: str | None = None
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    replicas: int = 1
    port: int | None = None
    store_dir: str | None = None
    sync_interval: str = "always"
    max_experience_bytes: int = 2 * GIB
    max_payload_bytes: int = 8 * MIB
    spill_bytes: int = 4 * MIB
    dedupe_window: float = 600.0
    connect_timeout: float = 10.0
