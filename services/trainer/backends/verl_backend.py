"""The veRL backend: a worker group of FSDP ranks on Ray, driven with one batch at a time.

Ray lives and dies with the trainer service; no Ray object leaves this module.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from services.config.tree import RunConfig
from services.inference.tokenizers import fingerprint
from services.trainer.backends import verl_settings
from services.trainer.backends.packing import pack
from services.trainer.backends.port import Sequence, Vocabulary
from services.trainer.backends.verl_metrics import named

log = structlog.get_logger()


class VerlBackend:
    """`services.trainer.backends.port.Backend` over veRL's FSDP engine."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._loss = verl_settings.loss_settings(config)
        self._ranks = config.trainer_ranks
        # without a coefficient entropy is only a metric, and on the CPU it takes a third of a step
        self._shows_entropy = self._loss.entropy_coeff != 0 or not verl_settings.on_cpu(config)
        self._actor: Any = None
        self._reference: Any = None
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary | None:
        return self._vocabulary

    def start(self, checkpoint: Path | None) -> None:
        self._vocabulary = _vocabulary(self._config.model.model_path, self._config.trainer.trust_remote_code)
        self._start_ray()
        from verl.workers.utils.losses import ppo_loss

        pool = self._resource_pool()
        self._actor = self._worker_group(pool, forward_only=False)
        self._actor.reset()
        self._actor.set_loss_fn(partial(ppo_loss, verl_settings.actor_config(self._config)))
        if self._loss.uses_reference:
            self._reference = self._worker_group(pool, forward_only=True)
            self._reference.reset()
        if checkpoint is not None:
            self._actor.load_checkpoint(str(checkpoint / "actor"), None, False)
        log.info(
            "trainer_backend_started",
            backend="verl",
            strategy=self._config.trainer.trainer_strategy,
            ranks=self._ranks,
            param_dtype=self._config.trainer.param_dtype,
            reference=self._reference is not None,
        )

    def train(self, sequences: list[Sequence]) -> dict[str, float]:
        data = pack(sequences, self._ranks, self._options(calculate_entropy=self._shows_entropy))
        if self._reference is not None:
            data["ref_log_prob"] = self._reference_logprobs(sequences)
        return named(_metrics(self._actor.train_mini_batch(data)))

    def write_weights(self, directory: Path, dtype: str) -> None:
        self._actor.write_weights(str(directory), dtype)

    def write_checkpoint(self, directory: Path) -> None:
        self._actor.save_checkpoint(str(directory / "actor"), None, 0)

    def stop(self) -> None:
        import ray

        ray.shutdown()

    def _options(self, calculate_entropy: bool) -> dict[str, Any]:
        return {
            "use_dynamic_bsz": self._config.trainer.use_dynamic_bsz,
            "max_token_len_per_gpu": verl_settings.token_budget(self._config),
            "use_remove_padding": verl_settings.removes_padding(self._config),
            "calculate_entropy": calculate_entropy,
            "pad_token_id": 0,
        }

    def _reference_logprobs(self, sequences: list[Sequence]) -> Any:
        """Log-probs of the responses under the starting weights, jagged as the batch is."""
        import torch
        from verl.utils import tensordict_utils
        from verl.workers.utils.padding import no_padding_2_padding

        data = pack(sequences, self._ranks, {**self._options(calculate_entropy=False), "compute_loss": False})
        output = self._reference.infer_batch(data).get()
        padded = no_padding_2_padding(tensordict_utils.get(output, "log_probs"), data)
        lengths = [len(response) for response in data["responses"].unbind()]
        rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def _start_ray(self) -> None:
        environment = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(_python_path())}
        if verl_settings.on_cpu(self._config):
            environment |= {
                "VERL_PLATFORM": "cpu",
                "VERL_USE_EXTERNAL_MODULES": "services.trainer.backends.verl_platform",
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self._threads())),
            }
            os.environ.update(environment)
        # Ray would make its workers give way to every other process: the trainer would starve beside an engine
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray

        ray.init(
            address=os.environ.get("RAY_ADDRESS"),
            num_cpus=None if "RAY_ADDRESS" in os.environ else max(self._ranks * 2, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=True,
            runtime_env={"env_vars": environment},
        )

    def _threads(self) -> int:
        return max(1, (os.cpu_count() or 1) // self._ranks)

    def _resource_pool(self) -> Any:
        """The places of all ranks; actor and reference policy share them."""
        from verl.single_controller.ray import RayResourcePool

        return RayResourcePool(
            process_on_nodes=_spread(self._ranks, self._config.cluster.gpu_per_node),
            use_gpu=not verl_settings.on_cpu(self._config),
            max_colocate_count=2 if self._loss.uses_reference else 1,
        )

    def _worker_group(self, pool: Any, forward_only: bool) -> Any:
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup

        from services.trainer.backends.verl_worker import FsdpWorker

        on_cpu = verl_settings.on_cpu(self._config)
        worker = RayClassWithInitArgs(
            ray.remote(FsdpWorker), config=verl_settings.worker_config(self._config, forward_only)
        )
        return RayWorkerGroup(pool, worker, device_name="cpu" if on_cpu else "cuda")


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


def _metrics(output: Any) -> dict[str, Any]:
    from verl.utils import tensordict_utils

    return dict(tensordict_utils.get(output.get(), "metrics"))


def _python_path() -> list[str]:
    root = str(Path(__file__).resolve().parents[3])
    return [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
