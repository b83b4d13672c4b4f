"""What may happen to a run, drawn from a seed: the sequence of acts is a pure function of it, and never of timing."""

import random
from dataclasses import dataclass

WEIGHTS: dict[str, int] = {
    "kill_explorer": 4,
    "kill_trainer": 2,
    "kill_trainer_in_checkpoint": 2,
    "kill_trainer_after_checkpoint": 2,
    "kill_synchronizer": 3,
    "kill_server": 2,
    "stop_server": 1,
    "freeze_service": 4,
    "freeze_server": 1,
    "partition": 4,
    "cut": 2,
    "supersede_trainer": 1,
    "garbage": 5,
    "occupy_ids": 3,
    "redeliver": 4,
    "join_explorer": 3,
    "leave_explorer": 2,
}


@dataclass(frozen=True)
class Act:
    """`who` in [0, 1) chooses among those that are there; it comes `after_s` and lasts `lasts_s` (seconds)."""

    kind: str
    who: float
    after_s: float
    lasts_s: float

    def __str__(self) -> str:
        return f"after {self.after_s:.2f} s {self.kind} (who {self.who:.3f}, lasts {self.lasts_s:.2f} s)"


def acts(seed: int, count: int) -> list[Act]:
    """Every kind of act comes before any comes for the third time; their order and their numbers are the seed's."""
    draw = random.Random(seed)
    kinds = draw.sample(list(WEIGHTS), len(WEIGHTS))
    while len(kinds) < count:
        kinds += draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=1)
    chosen = kinds[:count]
    return [Act(kind, draw.random(), draw.uniform(0.1, 1.4), draw.uniform(0.2, 4.0)) for kind in chosen]


def varied(seed: int) -> dict[str, dict[str, object]]:
    """Settings of a run that the seed chooses, by section."""
    draw = random.Random(f"settings of {seed}")
    keeps_all = draw.random() < 0.3
    return {
        "buffer": {"retain": "all" if keeps_all else "60%"},
        "bus": {
            "max_experience_bytes": 64 * 2**20 if keeps_all else draw.choice([200_000, 400_000]),
            "dedupe_window": draw.choice([1, 5, 600]),
            "spill_bytes": draw.choice([1200, 4 * 2**20]),
        },
        "synchronizer": {"sync_offset": draw.choice([0, 1, 2]), "sync_interval": draw.choice([1, 1, 2])},
        "trainer": {"save_interval": draw.choice([1, 2, 3, 5]), "max_checkpoints_to_keep": draw.choice([0, 2, 3])},
    }
