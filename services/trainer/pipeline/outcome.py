"""What an operator is, what it leaves of a group, and what goes wrong with one.

Invariant: an operator is a pure function of one group's experiences and of its arguments. A trainer that begins again
calls it again on the same group and must get the same, bit for bit: no clock, no chance, no state between calls.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from schemas.experiences import Experience
from services.runtime.context import Uncorrected

Experiences = tuple[Experience, ...]


class OperatorFailed(Uncorrected):
    """An operator that cannot be found, that raises, or that gives back what cannot be trained on."""


@dataclass(frozen=True)
class Outcome:
    """What an operator leaves of a group: `kept`, some or all of its experiences, as they were or changed.

    `metrics` are told under `experience_pipeline/`, put together over the groups of a step: the mean of them, or as a
    name that ends in `:sum`, `:max` or `:min` says.
    """

    kept: Experiences
    metrics: Mapping[str, float] = field(default_factory=dict)


Operator = Callable[..., Outcome]
"""Called with the experiences of one group, by position and step, and the operator's `args` by name."""
