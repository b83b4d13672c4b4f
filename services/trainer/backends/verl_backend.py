"""The veRL backend: a worker group of FSDP ranks on Ray, driven with one batch at a time.

Ray lives and dies with the trainer service; no Ray object leaves this module.
"""

import importlib
import os
from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any

import structlog

from services.config.derive import resolved
from services.config.tree import RunConfig
from services.inference.tokenizers import fingerprint
from services.trainer.backends import verl_settings
from services.trainer.backends.packing import pack
from services.trainer.backends.port import CheckpointUnfit, Floats, Sequence, Vocabulary
from services.trainer.backends.verl_metrics import named
from services.trainer.backends.verl_settings import Role
from services.trainer.demands import demands
from services.trainer.padding import unpadded

log = structlog.get_logger()


class VerlBackend:
    """`services.trainer.backends.port.Backend` over veRL's FSDP engine: a worker group for each model."""

    def __init__(self, config: RunConfig) -> None:
        self._config = resolved(config)
        self._demands = demands(self._config)
        self._ranks = config.trainer_ranks
        entropy = (self._config.algorithm.entropy_loss_fn_args or {}).get("entropy_coef", 0.0)
        # without a coefficient entropy is only a metric, and on the CPU it takes a third of a step
        self._shows_entropy = entropy != 0 or not verl_settings.on_cpu(config)
        self._groups: dict[Role, Any] = {}
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary | None:
        return self._vocabulary

    def start(self, checkpoint: Path | None) -> None:
        if checkpoint is not None:
            self._assert_fits(checkpoint)
        self._vocabulary = _vocabulary(self._config.model.model_path, self._config.trainer.trust_remote_code)
        self._start_ray()
        pool = self._resource_pool()
        for role in self._roles:
            self._groups[role] = self._worker_group(pool, role)
            self._groups[role].reset()
        self._set_losses()
        if checkpoint is not None:
            for role in self._trained:
                self._groups[role].load_checkpoint(str(checkpoint / role), None, False)
        log.info(
            "trainer_backend_started",
            backend="verl",
            strategy=self._config.trainer.trainer_strategy,
            ranks=self._ranks,
            param_dtype=self._config.trainer.param_dtype,
            models=self._roles,
        )

    def logprobs(self, sequences: Rows[Sequence]) -> list[Floats]:
        return self._inferred("actor", "log_probs", sequences)

    def entropies(self, sequences: Rows[Sequence]) -> list[Floats]:
        return self._inferred("actor", "entropy", sequences)

    def reference_logprobs(self, sequences: Rows[Sequence]) -> list[Floats]:
        return self._inferred("reference", "log_probs", sequences)

    def values(self, sequences: Rows[Sequence]) -> list[Floats]:
        return self._inferred("critic", "values", sequences)

    def update_critic(self, sequences: Rows[Sequence]) -> dict[str, float]:
        return named(self._updated("critic", sequences, {"calculate_entropy": False}), "critic")

    def update_actor(self, sequences: Rows[Sequence], step: int, kl_coef: float = 0.0) -> dict[str, float]:
        options: dict[str, Any] = {"calculate_entropy": self._shows_entropy, "step": step}
        if not self._demands.kl_loss:
            return named(self._updated("actor", sequences, options))
        metrics = named(self._updated("actor", sequences, {**options, "kl_coef": kl_coef}))
        return metrics | {"actor/kl_coef": kl_coef}

    def write_weights(self, directory: Path, dtype: str) -> None:
        self._groups["actor"].write_weights(str(directory), dtype)

    def write_checkpoint(self, directory: Path) -> None:
        for role in self._trained:
            self._groups[role].save_checkpoint(str(directory / role), None, 0)

    def stop(self) -> None:
        import ray

        ray.shutdown()

    @property
    def _trained(self) -> tuple[Role, ...]:
        return ("actor", "critic") if self._demands.critic else ("actor",)

    @property
    def _roles(self) -> tuple[Role, ...]:
        return (*self._trained, "reference") if self._demands.reference else self._trained

    def _set_losses(self) -> None:
        from services.trainer.backends.verl_loss import CriticLoss, actor_loss

        self._groups["actor"].set_loss_fn(actor_loss(self._config))
        if self._demands.critic:
            self._groups["critic"].set_loss_fn(CriticLoss(verl_settings.cliprange_value(self._config)))

    def _assert_fits(self, checkpoint: Path) -> None:
        lacking = [role for role in self._trained if not (checkpoint / role).is_dir()]
        if lacking:
            raise CheckpointUnfit(
                f"{checkpoint} holds no {' and no '.join(lacking)}: it was made by an algorithm that trains none. "
                "Begin a new run from its weights (model.model_path), or go on with that algorithm"
            )

    def _updated(self, role: Role, sequences: Rows[Sequence], options: dict[str, Any]) -> dict[str, Any]:
        """veRL's metrics of one optimizer step."""
        from verl.utils import tensordict_utils

        data = self._packed(role, sequences, options)
        return dict(tensordict_utils.get(self._groups[role].train_mini_batch(data).get(), "metrics"))

    def _inferred(self, role: Role, name: str, sequences: Rows[Sequence]) -> list[Floats]:
        """What a forward pass puts out at each response token."""
        from verl.utils import tensordict_utils
        from verl.workers.utils.padding import no_padding_2_padding

        data = self._packed(role, sequences, {"calculate_entropy": name == "entropy", "compute_loss": False})
        output = tensordict_utils.get(self._groups[role].infer_batch(data).get(), name)
        return unpadded(no_padding_2_padding(output, data), [sequence.response_length for sequence in sequences])

    def _packed(self, role: Role, sequences: Rows[Sequence], options: dict[str, Any]) -> Any:
        together = 2 if self._demands.pairs and role == "actor" else 1
        padding = {"use_remove_padding": verl_settings.removes_padding(self._config)}
        return pack(sequences, verl_settings.layout(self._config, role, together), padding | options)

    def _start_ray(self) -> None:
        environment = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(_python_path())}
        if verl_settings.on_cpu(self._config):
            environment |= {
                "VERL_PLATFORM": "cpu",
                "VERL_USE_EXTERNAL_MODULES": "services.trainer.backends.verl_platform",
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self._threads())),
            }
            os.environ.update(environment)
            _load_platform()
        # Ray would make its workers give way to every other process: the trainer would starve beside an engine
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray

        ray.init(
            address=os.environ.get("RAY_ADDRESS"),
            num_cpus=None if "RAY_ADDRESS" in os.environ else max(self._ranks * len(self._roles), os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=True,
            runtime_env={"env_vars": environment},
        )

    def _threads(self) -> int:
        return max(1, (os.cpu_count() or 1) // self._ranks)

    def _resource_pool(self) -> Any:
        """The places of all ranks; the models share them."""
        from verl.single_controller.ray import RayResourcePool

        return RayResourcePool(
            process_on_nodes=_spread(self._ranks, self._config.cluster.gpu_per_node),
            use_gpu=not verl_settings.on_cpu(self._config),
            max_colocate_count=len(self._roles),
        )

    def _worker_group(self, pool: Any, role: Role) -> Any:
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup

        from services.trainer.backends.verl_worker import FsdpWorker

        on_cpu = verl_settings.on_cpu(self._config)
        worker = RayClassWithInitArgs(ray.remote(FsdpWorker), config=verl_settings.worker_config(self._config, role))
        return RayWorkerGroup(pool, worker, device_name="cpu" if on_cpu else "cuda")


def _load_platform() -> None:
    """veRL loads it when it is imported for the first time, which someone may have done before us."""
    importlib.import_module("verl")
    importlib.import_module("services.trainer.backends.verl_platform")


def _vocabulary(model_path: str, trust_remote_code: bool) -> Vocabulary:
    """How many token ids the model embeds, and the fingerprint of the tokenizer beside it."""
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    return Vocabulary(size=int(config.get_text_config().vocab_size), tokenizer=fingerprint(tokenizer))


def _spread(ranks: int, gpus_per_node: int) -> list[int]:
    """Processes on each node: whole nodes first."""
    per_node = gpus_per_node or ranks
    full, rest = divmod(ranks, per_node)
    return [per_node] * full + ([rest] if rest else [])


def _python_path() -> list[str]:
    root = str(Path(__file__).resolve().parents[3])
    return [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
