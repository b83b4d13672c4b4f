"""The learning-rate schedules of policy and critic, and the number of steps that they are laid out for."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.config.tree import RunConfig
from services.config.verl.tree import below

CRITIC_LR = 1e-5
CRITIC_MIN_LR_RATIO = 0.01  # as of the policy's, and as Trinity-RFT sets it


@dataclass(frozen=True)
class Schedule:
    """How the learning rate goes on from step to step; veRL's own fields."""

    lr: float
    lr_warmup_steps: int
    lr_warmup_steps_ratio: float
    min_lr_ratio: float
    num_cycles: float
    lr_scheduler_type: str

    @property
    def needs_total(self) -> bool:
        """Whether it depends on the number of all steps."""
        by_ratio = self.lr_warmup_steps <= 0 and self.lr_warmup_steps_ratio > 0
        return by_ratio or self.lr_scheduler_type == "cosine"

    def warmup_steps(self, total: int) -> int:
        """Steps in which the learning rate rises from 0: `lr_warmup_steps`, else their share of `total`."""
        return self.lr_warmup_steps if self.lr_warmup_steps > 0 else int(self.lr_warmup_steps_ratio * total)

    def words(self, total: int | None) -> str:
        """The schedule in a line."""
        end = "the run's end" if total is None else f"step {total}"
        warmup = None if self.lr_warmup_steps <= 0 and total is None else self.warmup_steps(total or 0)
        rising = f"{self.lr_warmup_steps_ratio:g} of all steps" if warmup is None else f"{warmup} steps"
        begin = "" if warmup == 0 or (warmup is None and not self.lr_warmup_steps_ratio) else f", rising over {rising}"
        if self.lr_scheduler_type == "constant":
            return f"{self.lr:g}, constant{begin}"
        cycles = "" if self.num_cycles == 0.5 else f" in {self.num_cycles:g} cycles"
        return f"{self.lr:g}{begin}, then by cosine{cycles} to {self.lr * self.min_lr_ratio:g} at {end}"


def policy_schedule(config: RunConfig) -> Schedule:
    """That of `algorithm.optimizer`."""
    given = config.algorithm.optimizer
    return Schedule(**{name: getattr(given, name) for name in Schedule.__dataclass_fields__})


def critic_schedule(config: RunConfig) -> Schedule:
    """That of the critic: by `trainer.trainer_config.critic.optim`, and constant without it."""
    usual = Schedule(CRITIC_LR, -1, 0.0, CRITIC_MIN_LR_RATIO, 0.5, "constant")
    said = below(config, "critic.optim")
    return Schedule(**{name: said.get(name, getattr(usual, name)) for name in Schedule.__dataclass_fields__})


def schedule_steps(config: RunConfig) -> int | None:
    """Steps that the schedules are laid out for; None where the rows decide, which are not read yet."""
    return config.algorithm.optimizer.total_training_steps or config.total_steps


def who_needs_a_total(config: RunConfig) -> Iterator[str]:
    """The keys that cannot take effect without the number of all steps."""
    for place, schedule in (
        ("algorithm.optimizer", policy_schedule(config)),
        ("trainer.trainer_config.critic.optim", critic_schedule(config)),
    ):
        if schedule.lr_scheduler_type == "cosine":
            yield f"{place}.lr_scheduler_type=cosine"
        elif schedule.needs_total:
            yield f"{place}.lr_warmup_steps_ratio={schedule.lr_warmup_steps_ratio:g}"
