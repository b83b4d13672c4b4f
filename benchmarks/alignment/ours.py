"""Our side: the `Learner` over the veRL backend, as the trainer service drives them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.alignment.answers import Round, batch
from benchmarks.alignment.cases import Case, Scale, our_tree
from benchmarks.alignment.trace import Step, weights_of
from services.config.derive import resolved
from services.config.tree import RunConfig
from services.trainer.backends.verl_backend import VerlBackend
from services.trainer.learning import Learner


class Ours:
    """Workers that serve every case: each case begins from the models as they were."""

    def __init__(self, backend: VerlBackend, scale: Scale, directory: Path) -> None:
        self._backend = backend
        self._scale = scale
        self._directory = directory
        backend.write_checkpoint(directory / "begin")

    def trained(self, case: Case, rounds: list[Round]) -> list[Step]:
        """The steps of a case."""
        backend = VerlBackend(_config(case, self._scale))
        backend._groups = self._backend._groups
        backend._set_losses()
        for role in ("actor", "critic"):
            backend._groups[role].load_checkpoint(str(self._directory / "begin" / role), None, False)
        learner = Learner(_config(case, self._scale), backend)
        steps = []
        for number, answers in enumerate(rounds, start=1):
            metrics = learner.learn(batch(answers), number)
            written = self._directory / case.name / str(number)
            steps.append(Step(metrics, {role: weights_of(backend._groups[role], written / role) for role in _of(case)}))
        return steps


@contextmanager
def started(scale: Scale, directory: Path) -> Iterator[Ours]:
    """Our workers, in a Ray of their own."""
    backend = VerlBackend(_config(None, scale))
    try:
        backend.start(None)
        yield Ours(backend, scale, directory)
    finally:
        backend.stop()


def _config(case: Case | None, scale: Scale) -> RunConfig:
    return resolved(RunConfig.model_validate(our_tree(case, scale)))


def _of(case: Case) -> tuple[str, ...]:
    return ("actor", "critic") if case.is_ppo else ("actor",)
