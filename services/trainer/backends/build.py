"""The one place that chooses a training backend."""

from services.config.tree import RunConfig
from services.trainer.backends.port import Backend


def build_backend(config: RunConfig) -> Backend:
    """The backend of `trainer.trainer_type`."""
    if config.trainer.trainer_type == "fake":
        from services.trainer.backends.fake import FakeBackend

        return FakeBackend(**config.trainer.trainer_config)
    from services.trainer.backends.verl_backend import VerlBackend

    return VerlBackend(config)
