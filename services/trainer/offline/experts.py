"""Expert rows beside sampled experiences (`sample_strategy: mix`).

Invariant: which rows go into step `s` (from 1) is a function of `s`, the data, the seed and the configuration: with `k`
rows a step, they are the places `(s - 1) * k` to `s * k - 1` of an endless sequence of epochs over the usable rows.
"""

from collections import Counter

import structlog

from schemas.experiences import GroupSampled
from schemas.tasks import TaskIdentity
from services.config.tree import RunConfig
from services.trainer.offline.errors import DataError
from services.trainer.offline.formatting import Formatter, formatter_of

log = structlog.get_logger()


class ExpertRows:
    """The expert rows of each step. All rows are laid out once at the start, to leave out those that are of no use."""

    def __init__(self, formatter: Formatter, rows_a_step: int) -> None:
        self._formatter = formatter
        self._rows_a_step = rows_a_step
        rules = [formatter.rule(formatter.group(self._identity(0, 0, index))) for index in range(len(formatter.rows))]
        self._usable = [index for index, rule in enumerate(rules) if rule is None]
        self.left_out = Counter(rule for rule in rules if rule is not None)
        if not self._usable:
            raise DataError(formatter.rows.place, f"no row can be trained on: {dict(self.left_out)}")

    def of(self, step: int) -> list[GroupSampled]:
        """The expert rows of a step, each a group of its own."""
        first = (step - 1) * self._rows_a_step
        return [self._formatter.group(self._at(place)) for place in range(first, first + self._rows_a_step)]

    def _at(self, place: int) -> TaskIdentity:
        epoch, within = divmod(place, len(self._usable))
        order = self._formatter.rows.order_in(epoch, len(self._usable))
        return self._identity(place, epoch, self._usable[int(order[within])])

    def _identity(self, place: int, epoch: int, index: int) -> TaskIdentity:
        batch = place // self._rows_a_step
        return TaskIdentity(ordinal=place, batch=batch, taskset=self._formatter.rows.name, epoch=epoch, index=index)


def experts_of(config: RunConfig) -> ExpertRows | None:
    """The expert rows that the configuration mixes in; None where it mixes in none.

    Raises:
        DataError: the data cannot be read, or a row is not what the format says.
    """
    mixing = config.mixing
    if mixing is None or config.expert_batch_size == 0:
        return None
    name = mixing.sft_dataset_name
    formatter = formatter_of(config, name, config.buffer.trainer_input.auxiliary_buffers[name], "sft")
    found = ExpertRows(formatter, config.expert_batch_size)
    log.info("expert_rows_opened", path=formatter.rows.place, rows=len(formatter.rows), left_out=dict(found.left_out))
    return found
