"""The one table between veRL's keys and ours. The first row that fits a key decides."""

from functools import cache

from services.convert.row import Row
from services.convert.table.algorithm import ALGORITHM
from services.convert.table.data import DATA
from services.convert.table.models import MODELS, REST
from services.convert.table.offline import EVALUATED, GENERATED, SUPERVISED
from services.convert.table.optimizer import OPTIMIZERS
from services.convert.table.reward import REWARD
from services.convert.table.rollout import ROLLOUTS
from services.convert.table.trainer import TRAINER

TABLE: tuple[Row, ...] = (
    *GENERATED,
    *EVALUATED,
    *SUPERVISED,
    *DATA,
    *ALGORITHM,
    *OPTIMIZERS,
    *ROLLOUTS,
    *REWARD,
    *TRAINER,
    *MODELS,
    *REST,
)


@cache
def row_of(key: str, kind: str) -> Row | None:
    """The row of a key; None for a key that veRL does not know."""
    return next((row for row in TABLE if row.fits(key, kind)), None)
