"""Which announced versions are judged."""

from dataclasses import dataclass

from schemas.weights import WeightsAnnounced


@dataclass(frozen=True)
class Schedule:
    """Every `interval` versions, at the start when `on_startup`, and at the end."""

    interval: int
    on_startup: bool

    def is_due(self, announced: WeightsAnnounced) -> bool:
        version = announced.weights.version
        if announced.is_final:
            return True
        if version == 0:
            return self.on_startup
        return self.interval > 0 and version % self.interval == 0
