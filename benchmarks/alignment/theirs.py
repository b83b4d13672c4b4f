"""veRL's side: `RayPPOTrainer`'s own steps in the order of its `fit`, over its `ActorRolloutRefWorker`.

veRL's configuration is composed by hydra from its `ppo_trainer.yaml`; models, losses, advantages, batching and metrics
are veRL's. Only what the CPU asks for is taken from our worker: a process group of gloo, and attention without flash.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
import verl
import verl.utils.metric
from hydra import compose, initialize_config_dir
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import create_colocated_worker_cls
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.losses import ppo_loss, value_loss

from benchmarks.alignment.answers import Round, data_proto
from benchmarks.alignment.cases import Case, Scale, their_overrides
from benchmarks.alignment.trace import Step, weights_of
from services.trainer.backends.verl_platform import ENVIRONMENT
from services.trainer.backends.verl_worker import FsdpWorker


class PolicyWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """veRL's worker of policy and reference."""

    actor_worker_cls = FsdpWorker
    ref_worker_cls = FsdpWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def write_weights(self, directory: str, dtype: str) -> None:
        self.actor.write_weights(directory, dtype)


class Theirs(RayPPOTrainer):  # type: ignore[misc]
    """veRL's trainer without its rollout, whose answers are given."""

    def __init__(self, scale: Scale, directory: Path) -> None:
        self._scale = scale
        self._directory = directory
        self.config = composed(None, scale)
        self.ref_in_actor = False
        groups = _worker_groups(self.config)
        self.actor_rollout_wg, self.ref_policy_wg = groups["actor"], groups["ref"]
        self.critic_wg = groups["critic"]
        self.critic_wg.reset()
        self.ref_policy_wg.init_model()
        self.actor_rollout_wg.init_model()
        for role, group in self._trained.items():
            group.save_checkpoint(str(directory / "begin" / role), None, 0)

    def trained(self, case: Case, rounds: list[Round]) -> list[Step]:
        """The steps of a case, from the models as they were."""
        self.config = composed(case, self._scale)
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        critic = omega_conf_to_dataclass(self.config.critic)
        self.actor_rollout_wg.set_loss_fn(partial(ppo_loss, config=actor))
        self.critic_wg.set_loss_fn(partial(value_loss, config=critic))
        for role, group in self._trained.items():
            group.load_checkpoint(str(self._directory / "begin" / role), None, False)
        steps = []
        for number, answers in enumerate(rounds, start=1):
            metrics = self._step(case, data_proto(answers))
            written = self._directory / case.name / str(number)
            groups = self._trained if case.is_ppo else {"actor": self.actor_rollout_wg}
            steps.append(Step(metrics, {role: weights_of(group, written / role) for role, group in groups.items()}))
        return steps

    @property
    def _trained(self) -> dict[str, Any]:
        return {"actor": self.actor_rollout_wg, "critic": self.critic_wg}

    def _step(self, case: Case, data: Any) -> dict[str, float]:
        """One pass of `fit`, from the rewards to the updates."""
        if case.recomputes:
            own, _ = self._compute_old_log_prob(data)
            own.batch.pop("entropys")
            data = data.union(own)
        else:
            settings = copy.deepcopy(self.config.actor_rollout_ref.actor.policy_loss)
            apply_bypass_mode(data, self.config.algorithm.rollout_correction, settings)
        if not case.is_ppo:
            data = data.union(self._compute_ref_log_prob(data))
        else:
            data = data.union(self._compute_values(data))
        algorithm = self.config.algorithm
        data = compute_advantage(
            data,
            adv_estimator=algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            num_repeat=self.config.actor_rollout_ref.rollout.n,
            norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
            config=algorithm,
        )
        outputs = [*([self._update_critic(data)] if case.is_ppo else []), self._update_actor(data)]
        metrics: dict[str, float] = {}
        for output in outputs:
            metrics |= verl.utils.metric.reduce_metrics(output.meta_info["metrics"])
        return metrics


@contextmanager
def started(scale: Scale, directory: Path) -> Iterator[Theirs]:
    """veRL's workers, in a Ray of their own."""
    root = str(Path(__file__).resolve().parents[2])
    threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    environment = {**ENVIRONMENT, "PYTHONPATH": root, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    ray.init(num_cpus=max(3, os.cpu_count() or 1), include_dashboard=False, runtime_env={"env_vars": environment})
    try:
        yield Theirs(scale, directory)
    finally:
        ray.shutdown()


def composed(case: Case | None, scale: Scale) -> Any:
    """veRL's whole configuration of a case."""
    directory = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(directory), version_base=None):
        return compose("ppo_trainer", overrides=their_overrides(case, scale))


def _worker_groups(config: Any) -> dict[str, Any]:
    """Policy, reference and critic in one process, as veRL puts them together."""
    classes = {
        "actor": RayClassWithInitArgs(ray.remote(PolicyWorker), config=config.actor_rollout_ref, role="actor"),
        "ref": RayClassWithInitArgs(ray.remote(PolicyWorker), config=config.actor_rollout_ref, role="ref"),
        "critic": RayClassWithInitArgs(ray.remote(FsdpWorker), config=_critic_config(config)),
    }
    pool = RayResourcePool(process_on_nodes=[1], use_gpu=False, max_colocate_count=3)
    group = RayWorkerGroup(pool, create_colocated_worker_cls(class_dict=classes), device_name="cpu")
    return dict(group.spawn(prefix_set=classes.keys()))


def _critic_config(config: Any) -> TrainingWorkerConfig:
    """As `RayPPOTrainer.init_workers` makes it."""
    critic = omega_conf_to_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    return TrainingWorkerConfig(
        model_type="value_model",
        model_config=critic.model,
        engine_config=critic.engine,
        optimizer_config=critic.optim,
        checkpoint_config=critic.checkpoint,
    )
