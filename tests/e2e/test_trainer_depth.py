"""What veRL's keys ask of the trainer happens to the weights: held against plain torch, update by update."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from services.config.derive import resolved
from services.config.tree import RunConfig
from services.trainer.backends.port import Sequence
from services.trainer.backends.verl_backend import VerlBackend
from services.trainer.backends.verl_settings import worker_config

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray leaves open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LR, WARMUP, TOTAL, MIN_RATIO, CLIP = 2e-3, 2, 6, 0.1, 0.5
STEPS, EPOCHS = 4, 2
ALGORITHM = {
    "algorithm_type": "grpo",
    "policy_loss_fn": "sft",
    "kl_loss_fn": "none",
    "entropy_loss_fn": "none",
    "optimizer": {"lr": LR},
}
TRAINER = {
    "enable_gradient_checkpointing": True,
    "entropy_from_logits_with_chunking": True,
    "use_remove_padding": True,
    "param_offload": True,
    "optimizer_offload": True,
    "max_token_len_per_gpu": 30,
    "trainer_config": {
        "actor_rollout_ref": {
            "model": {"override_config": {"attn_implementation": "sdpa"}},
            "actor": {
                "ppo_epochs": EPOCHS,
                "grad_clip": CLIP,
                "entropy_from_logits_chunk_size": 7,
                "entropy_checkpointing": True,
                "optim": {
                    "optimizer": "RAdam",
                    "override_optimizer_config": {"eps": 1e-6},
                    "lr_scheduler_type": "cosine",
                    "lr_warmup_steps": WARMUP,
                    "total_training_steps": TOTAL,
                    "min_lr_ratio": MIN_RATIO,
                },
                "fsdp_config": {"reshard_after_forward": False, "wrap_policy": {"min_num_params": 0}},
            },
        }
    },
}


@contextmanager
def _started(base: dict[str, Any]) -> Iterator[VerlBackend]:
    """Two ranks, not held against the rules of a whole run: there is none here."""
    tree = copy.deepcopy(base)
    tree["cluster"]["trainer_ranks"] = 2
    tree["algorithm"], tree["trainer"] = ALGORITHM, tree["trainer"] | TRAINER
    backend = VerlBackend(resolved(RunConfig.model_validate(tree)))
    try:
        backend.start(None)
        yield backend
    finally:
        backend.stop()


def _rows(seed: int, size: int = 9) -> list[Sequence]:
    """Responses of different lengths; two ranks take a silent copy beside nine of them."""
    chance = np.random.default_rng(seed)
    return [
        Sequence(
            tokens=chance.integers(0, 200, 5 + length).astype(np.int32),
            prompt_length=5,
            action_mask=np.ones(length, np.uint8),
            old_logprobs=np.full(length, -5.3, np.float32),
            advantages=np.ones(length, np.float32),
            group=place,
        )
        for place, length in enumerate(chance.integers(3, 19, size))
    ]


def _rate(update: int) -> float:
    """Half a cosine after a warm-up from 0, as docs/trainer.md writes it."""
    if update < WARMUP:
        return LR * update / WARMUP
    wave = np.cos(np.pi * (update - WARMUP) / (TOTAL - WARMUP))
    return float(LR * max(MIN_RATIO, (1 + MIN_RATIO) / 2 + (1 - MIN_RATIO) / 2 * wave))


def _by_torch(model_path: str) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Weights after the steps, with the loss and gradient norm of each: one batch, whole and unpadded, no veRL."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    optimizer = torch.optim.RAdam(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.01, eps=1e-6)
    told = []
    for step in range(STEPS):
        rows, found = _rows(step), []
        optimizer.param_groups[0]["lr"] = _rate(step)
        for _ in range(EPOCHS):
            loss = -torch.cat([_logprobs(model, row) for row in rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            found.append((float(loss.detach()), float(norm.detach())))
        told.append((float(np.mean([loss for loss, _ in found])), float(np.mean([norm for _, norm in found]))))
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}, told


def _logprobs(model: Any, row: Any) -> Any:
    import torch

    tokens = torch.tensor(row.tokens.astype(np.int64))
    every = torch.log_softmax(model(tokens[None]).logits[0], dim=-1)
    return every[row.prompt_length - 1 : -1].gather(1, tokens[row.prompt_length :, None])[:, 0]


def test_what_is_said_of_each_model_reaches_verls_own_configuration(real_config: dict[str, Any]) -> None:
    said = {
        "actor_rollout_ref": {
            "model": {"enable_activation_offload": True},
            "actor": {"fsdp_config": {"forward_prefetch": True, "mixed_precision": {"reduce_dtype": "bf16"}}},
            "ref": {"entropy_checkpointing": True},
        },
        "critic": {
            "grad_clip": 0.25,
            "model": {"fsdp_config": {"param_offload": True}, "enable_gradient_checkpointing": True},
            "optim": {"lr": 2e-5, "warmup_style": "cosine", "betas": [0.8, 0.9]},
        },
    }
    tree = real_config | {"trainer": real_config["trainer"] | {"trainer_config": said, "use_torch_compile": True}}
    tree["algorithm"] = {"algorithm_type": "ppo", "optimizer": {"optimizer_type": "sgd", "weight_decay": 0.5}}
    config = resolved(RunConfig.model_validate(tree))
    actor, critic, reference = (worker_config(config, role) for role in ("actor", "critic", "reference"))
    assert actor.model_config.enable_activation_offload is True
    assert reference.model_config.enable_activation_offload is True
    assert critic.model_config.enable_activation_offload is False
    assert actor.engine_config.forward_prefetch is True
    assert actor.engine_config.mixed_precision == {
        "param_dtype": "fp32",
        "reduce_dtype": "bf16",
        "buffer_dtype": "fp32",
    }
    assert critic.engine_config.mixed_precision["reduce_dtype"] == "fp32"
    assert (actor.engine_config.param_offload, critic.engine_config.param_offload) == (False, True)
    assert (actor.engine_config.entropy_checkpointing, reference.engine_config.entropy_checkpointing) == (False, True)
    assert {each.engine_config.use_torch_compile for each in (actor, critic, reference)} == {True}
    assert critic.model_config.enable_gradient_checkpointing is True
    assert (actor.optimizer_config.optimizer, actor.optimizer_config.weight_decay) == ("SGD", 0.5)
    optimizer = critic.optimizer_config
    assert (optimizer.optimizer, optimizer.lr, optimizer.clip_grad, optimizer.betas) == (
        "AdamW",
        2e-5,
        0.25,
        (0.8, 0.9),
    )
    assert (optimizer.lr_scheduler_type, optimizer.total_training_steps) == ("cosine", 3)


@pytest.mark.e2e
def test_epochs_clipping_optimizer_schedule_packing_and_checkpointing_are_those_of_plain_torch(
    real_config: dict[str, Any], tmp_path: Path
) -> None:
    with _started(real_config) as backend:
        metrics = [backend.update_actor(_rows(step), step + 1) for step in range(STEPS)]
        (entropies,) = backend.measured(_rows(9), ["entropy"]).values()
        backend.write_weights(tmp_path, "float32")
    expected, told = _by_torch(real_config["model"]["model_path"])
    for step, (loss, norm) in enumerate(told):
        assert metrics[step]["actor/final_loss"] == pytest.approx(loss, rel=1e-4), step
        assert metrics[step]["actor/grad_norm"] == pytest.approx(norm, rel=1e-3), step
        assert metrics[step]["actor/lr"] == pytest.approx(_rate(step + 1), rel=1e-6), step
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert (tensor - expected[name]).abs().max() < 3e-6, name  # they move by up to 2e-4
    assert [len(each) for each in entropies] == [row.response_length for row in _rows(9)]
    for found, row in zip(entropies, _rows(9), strict=True):
        assert found == pytest.approx(_entropy(tmp_path, row), abs=1e-4)


def _entropy(model_path: Path, row: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    with torch.no_grad():
        every = torch.log_softmax(model(torch.tensor(row.tokens[None].astype(np.int64))).logits[0], dim=-1)
    return -(every.exp() * every).sum(-1)[row.prompt_length - 1 : -1].numpy()
