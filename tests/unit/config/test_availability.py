"""What a later version brings passes the checks, and is answered clearly at the run."""

from collections.abc import Callable

import pytest

from services.config.algorithms.parts import KL_FNS
from services.config.availability import notices, unavailable
from services.config.load import Loaded

Load = Callable[..., Loaded]


def test_a_plain_run_asks_for_nothing_unavailable(loaded: Load) -> None:
    config = loaded().config
    assert (unavailable(config), notices(config)) == ([], [])


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["synchronizer.sync_method=nccl"], "synchronizer.sync_method=nccl (set checkpoint instead)"),
        (["synchronizer.sync_method=memory"], "synchronizer.sync_method=memory (set checkpoint instead)"),
        (["mode=colocate"], "mode=colocate (set both or explore or train or bench or serve instead)"),
        (
            ["explorer.rollout_model.tool_call_parser=qwen3_coder"],
            "explorer.rollout_model.tool_call_parser=qwen3_coder (leave explorer.rollout_model.tool_call_parser out)",
        ),
        (
            ["explorer.rollout_model.tensor_parallel_size=2"],
            "explorer.rollout_model.tensor_parallel_size=2 on the CPU (set 1 instead, or cluster.gpu_per_node)",
        ),
        (["trainer.trainer_strategy=megatron"], "trainer.trainer_strategy=megatron (set fsdp2 or fsdp instead)"),
        (
            ["synchronizer.trainer_sync_interval=3"],
            "synchronizer.trainer_sync_interval=3 (set sync_interval for both sides instead)",
        ),
    ],
)
def test_a_later_feature_is_accepted_and_answered(loaded: Load, overrides: list[str], line: str) -> None:
    assert unavailable(loaded(*overrides).config) == [f"not available yet: {line}"]


@pytest.mark.parametrize("name", KL_FNS)
def test_every_kl_loss_is_available(loaded: Load, name: str) -> None:
    assert unavailable(loaded(f"algorithm.kl_loss_fn={name}").config) == []


def test_precisions_that_differ_are_noticed(loaded: Load) -> None:
    (notice,) = notices(loaded("trainer.param_dtype=fp32").config)
    assert notice.startswith("explorer.rollout_model.dtype=bfloat16 and trainer.param_dtype=fp32 differ")


def test_a_key_without_effect_is_noticed(loaded: Load) -> None:
    result = loaded("synchronizer.explorer_world_size=4")
    assert result.notes == ("synchronizer.explorer_world_size=4 has no effect: explorers join and leave at will",)
