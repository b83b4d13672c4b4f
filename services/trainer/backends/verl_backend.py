"""The veRL backend: a worker group of FSDP ranks on Ray, driven with one batch at a time.

Ray lives and dies with the trainer service; no Ray object leaves this module.
"""

import importlib
import os
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from services.config.allocation import allocation
from services.config.derive import resolved
from services.config.micro_batches import epochs
from services.config.tree import RunConfig
from services.config.verl.tree import Role
from services.inference.tokenizers import fingerprint
from services.trainer.algorithms.gap import completed
from services.trainer.backends import verl_settings
from services.trainer.backends.packing import Layout, pack
from services.trainer.backends.port import CheckpointUnfit, Floats, Measure, Sequence, Vocabulary
from services.trainer.backends.verl_metrics import named, seqlen
from services.trainer.demands import demands
from services.trainer.padding import unpadded
from services.trainer.sharded import Shards

log = structlog.get_logger()

_FSDP_VERSIONS = {"fsdp": 1, "fsdp2": 2}

_OUTPUTS: dict[Measure, str] = {"logprob": "log_probs", "entropy": "entropy", "nec": "nec"}
_WITHOUT_ADAPTER = {"no_lora_adapter": True}
_LOGIT_OPTIONS = {"distillation_use_topk": True, "compute_loss": True}  # veRL hands its logits to the loss function


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
            self._load(checkpoint)
        log.info(
            "trainer_backend_started",
            backend="verl",
            strategy=self._config.trainer.trainer_strategy,
            ranks=self._ranks,
            param_dtype=self._config.trainer.param_dtype,
            models=self._roles,
        )

    def measured(self, sequences: Rows[Sequence], measures: Rows[Measure]) -> dict[Measure, list[Floats]]:
        options: dict[str, Any] = {"calculate_entropy": "entropy" in measures}
        names = {measure: _OUTPUTS[measure] for measure in measures}
        if "nec" not in measures:
            found = self._inferred("actor", names.values(), sequences, options)
        else:
            with self._measuring_logits():
                found = self._inferred("actor", names.values(), sequences, options | _LOGIT_OPTIONS)
        return {measure: found[name] for measure, name in names.items()}

    def reference_logprobs(self, sequences: Rows[Sequence]) -> list[Floats]:
        if self._config.model.lora is None:
            return self._inferred("reference", ["log_probs"], sequences)["log_probs"]
        return self._inferred("actor", ["log_probs"], sequences, _WITHOUT_ADAPTER)["log_probs"]

    def values(self, sequences: Rows[Sequence]) -> list[Floats]:
        return self._inferred("critic", ["values"], sequences)["values"]

    def update_critic(self, sequences: Rows[Sequence]) -> dict[str, float]:
        return named(self._updated("critic", sequences, {"calculate_entropy": False}), "critic")

    def update_actor(self, sequences: Rows[Sequence], step: int, kl_coef: float = 0.0) -> dict[str, float]:
        options: dict[str, Any] = {"calculate_entropy": self._shows_entropy, "step": step}
        if self._demands.kl_loss:
            options["kl_coef"] = kl_coef
        actions = float(sum(each.action_mask.sum() for each in sequences if not each.is_expert))
        metrics = completed(named(self._updated("actor", sequences, options)), actions)
        metrics |= seqlen(sequences, self._layout("actor"))
        return metrics | ({"actor/kl_coef": kl_coef} if self._demands.kl_loss else {})

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
        has_own = self._demands.reference and self._config.model.lora is None
        return (*self._trained, "reference") if has_own else self._trained

    def _set_losses(self) -> None:
        from services.trainer.backends.verl_loss import CriticLoss, actor_loss

        self._groups["actor"].set_loss_fn(actor_loss(self._config))
        if self._demands.critic:
            self._groups["critic"].set_loss_fn(CriticLoss(verl_settings.cliprange_value(self._config)))

    def _load(self, checkpoint: Path) -> None:
        for role in self._trained:
            self._groups[role].load_checkpoint(str(checkpoint / role), None, False)
        written_by = Shards(checkpoint / "actor").ranks
        if written_by != self._ranks:
            log.info("checkpoint_resharded", written_by=written_by, ranks=self._ranks, random_states="seeded anew")

    def _assert_fits(self, checkpoint: Path) -> None:
        lacking = [role for role in self._trained if not (checkpoint / role).is_dir()]
        if lacking:
            raise CheckpointUnfit(
                f"{checkpoint} holds no {' and no '.join(lacking)}: it was made by an algorithm that trains none. "
                "Begin a new run from its weights (model.model_path), or go on with that algorithm"
            )
        made_by = {Shards(checkpoint / role).fsdp_version for role in self._trained} - {None}
        strategy = self._config.trainer.trainer_strategy
        others = made_by - {_FSDP_VERSIONS[strategy]}
        if others:
            raise CheckpointUnfit(
                f"{checkpoint} was made by FSDP {others.pop()}, whose optimizer trainer.trainer_strategy={strategy} "
                "cannot take over: set it as it was, or begin a new run from the weights (`trinity convert checkpoint`)"
            )

    def _updated(self, role: Role, sequences: Rows[Sequence], options: dict[str, Any]) -> dict[str, Any]:
        """veRL's metrics of one optimizer step."""
        from verl.utils import tensordict_utils

        data = self._packed(self._layout(role), sequences, {"epochs": epochs(self._config, role)} | options)
        return dict(tensordict_utils.get(self._groups[role].train_mini_batch(data).get(), "metrics"))

    def _inferred(
        self, role: Role, names: Iterable[str], sequences: Rows[Sequence], options: dict[str, Any] | None = None
    ) -> dict[str, list[Floats]]:
        """What a forward pass puts out at each response token, by veRL's names."""
        from verl.utils import tensordict_utils
        from verl.workers.utils.padding import no_padding_2_padding

        layout = self._layout(role, is_forward=True)
        data = self._packed(layout, sequences, {"calculate_entropy": False, "compute_loss": False} | (options or {}))
        output, lengths = self._groups[role].infer_batch(data).get(), data["responses"].offsets().diff().tolist()
        order = layout.found_at(sequences)
        found: dict[str, list[Floats]] = {}
        for name in names:
            rows = unpadded(no_padding_2_padding(tensordict_utils.get(output, name), data), lengths)
            found[name] = [rows[at] for at in order]
        return found

    @contextmanager
    def _measuring_logits(self) -> Iterator[None]:
        """While the workers measure logits in place of the loss."""
        from services.trainer.backends.verl_logits import LogitMeasures

        self._groups["actor"].set_loss_fn(LogitMeasures())
        try:
            yield
        finally:
            self._set_losses()

    def _layout(self, role: Role, is_forward: bool = False) -> Layout:
        together = 2 if self._demands.pairs and role == "actor" else 1
        return verl_settings.layout(self._config, role, together, is_forward)

    def _packed(self, layout: Layout, sequences: Rows[Sequence], options: dict[str, Any]) -> Any:
        padding = {"use_remove_padding": verl_settings.removes_padding(self._config)}
        return pack(sequences, layout, padding | options)

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
            process_on_nodes=[*allocation(self._config).ranks_of_nodes.values()] or [self._ranks],
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


def _python_path() -> list[str]:
    root = str(Path(__file__).resolve().parents[3])
    return [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
