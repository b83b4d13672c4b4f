"""What the ledger says of reuse: the rules by which experiences were trained on more than once, and the pool."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from services.config.reuse import ReuseRule
from services.trainer.reuse.pool import EMPTY, Pool


@dataclass(frozen=True)
class RuleSince:
    """The rule from step `from_step` (from 1) on; None: nothing is used again."""

    from_step: int
    rule: ReuseRule | None


@dataclass(frozen=True)
class Reuse:
    """The rules of all steps so far, the earliest first, and the pool after the last step."""

    rules: tuple[RuleSince, ...] = ()
    pool: Pool = EMPTY

    def rule_at(self, step: int) -> ReuseRule | None:
        """The rule of a step; None before the first."""
        known = [since.rule for since in self.rules if since.from_step <= step]
        return known[-1] if known else None

    def after(self, step: int, rule: ReuseRule | None, pool: Pool) -> "Reuse":
        """With step `step`, made by `rule`."""
        changed = rule != (self.rules[-1].rule if self.rules else None)
        return Reuse((*self.rules, RuleSince(step, rule)) if changed else self.rules, pool)

    def as_json(self) -> dict[str, Any]:
        rules = [
            {"from_step": since.from_step, "rule": since.rule.as_json() if since.rule else None} for since in self.rules
        ]
        return {"rules": rules, "pool": self.pool.as_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        rules = tuple(
            RuleSince(int(each["from_step"]), ReuseRule.from_json(each["rule"]) if each["rule"] else None)
            for each in value["rules"]
        )
        return cls(rules, Pool.from_json(value["pool"]))


NO_REUSE = Reuse()
