"""What a replay buffer asks of the rest of the configuration, and the rule that comes of it."""

from collections.abc import Callable

import pytest

from services.config.load import Loaded
from services.config.reuse import ReuseRule
from services.config.reuse_rule import reuse_rule
from services.synchronizer.plan import pace_of, plan_of

Load = Callable[..., Loaded]
BUFFER = "buffer.trainer_input.experience_buffer"
KEY = f"{BUFFER}.replay_buffer"
REUSE = (f"{KEY}.enable=true", f"{KEY}.reuse_cooldown_time=0", "buffer.train_batch_size=64")
LIMITED = f"{KEY}.priority_fn=decay_limit_randomization"


def test_the_rule_has_trinitys_defaults(loaded: Load) -> None:
    config = loaded(*REUSE).config
    assert reuse_rule(config) == ReuseRule(train_batch_size=64, capacity=10000)
    limited = loaded(*REUSE, LIMITED, f"{KEY}.reuse_cooldown_time=30", f"{BUFFER}.capacity=640").config
    assert reuse_rule(limited) == ReuseRule(64, 640, 30.0, "decay_limit_randomization", 2.0, 3, 0.0)


def test_one_released_batch_makes_one_step_however_much_is_used_again(loaded: Load, tmp_path) -> None:
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    reused, plain = loaded(*REUSE, "buffer.total_steps=10").config, loaded("buffer.total_steps=10").config
    assert (reused.fresh_batch_size, reused.usual_batch_size) == (32, 64)
    assert pace_of(reused) == pace_of(plain)
    assert plan_of(reused).tasks == plan_of(plain).tasks == 40
    several = loaded("buffer.train_batch_size=64", "buffer.total_steps=10").config
    assert (several.fresh_batch_size, pace_of(several).steps_per_batch, plan_of(several).tasks) == (64, 0.5, 80)


@pytest.mark.parametrize("overrides", [(f"{KEY}.enable=true",), REUSE[:2], REUSE[::2]])
def test_where_no_step_has_room_nothing_is_reused_and_that_is_told(loaded: Load, overrides: tuple[str, ...]) -> None:
    result = loaded(*overrides)
    assert reuse_rule(result.config) is None
    (note,) = result.notes
    assert note.startswith(f"{KEY}.enable=true has no effect")


def test_a_pool_that_could_fill_the_stream_is_told(loaded: Load) -> None:
    assert loaded(*REUSE).notes == ()
    long = ("model.max_response_tokens=16384", "model.max_prompt_tokens=1024")
    (note,) = loaded(*REUSE, *long).notes
    assert note.startswith(f"{BUFFER}.capacity=10000 experiences of up to {8 * 17408 + 9 * 16384} bytes each")
    assert loaded(*REUSE, *long, f"{BUFFER}.capacity=1000").notes == ()


def test_staleness_control_bounds_reuse_too(loaded: Load) -> None:
    control = ("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=2")
    rule = reuse_rule(loaded(*REUSE, *control).config)
    assert rule is not None
    assert rule.max_staleness == 2.0


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((f"{KEY}.priority_fn=linear",), f"{KEY}.priority_fn=linear is not there: use linear_decay"),
        (
            (f"{KEY}.priority_fn_args={{use_count_limit: 2}}",),
            f"{KEY}.priority_fn_args.use_count_limit is no argument of linear_decay: it takes decay",
        ),
        ((f"{KEY}.priority_fn_args={{decay: -1}}",), f"{KEY}.priority_fn_args.decay=-1: use a number of 0 or more"),
        (
            (LIMITED, f"{KEY}.priority_fn_args={{use_count_limit: 2.5}}"),
            f"{KEY}.priority_fn_args.use_count_limit=2.5: use a whole number, 0 for no limit",
        ),
        (
            (f"{KEY}.reuse_cooldown_time=-1",),
            f"{KEY}.reuse_cooldown_time=-1.0 is no time: use 0 or more seconds, or leave it out for no reuse",
        ),
        (
            (f"{BUFFER}.capacity=31",),
            f"{BUFFER}.capacity=31 holds fewer experiences than the 32 that a step uses again (train_batch_size 64, "
            "of which 32 are fresh): use 32 or more",
        ),
        (
            (LIMITED, "buffer.train_batch_size=128"),
            "buffer.train_batch_size=128 is never reached: "
            f"{KEY}.priority_fn_args.use_count_limit=3 gives each experience 3 uses, and 32 a step are fresh "
            "(batch_size * repeat_times): use at most 96, or give more uses",
        ),
        (
            (
                "algorithm.sample_strategy=staleness_control",
                "algorithm.sample_strategy_args.max_staleness=1",
                "synchronizer.sync_offset=1",
            ),
            "buffer.train_batch_size=64 is never reached: algorithm.sample_strategy_args.max_staleness=1 at "
            "sync_offset=1 gives each experience 1 uses, and 32 a step are fresh (batch_size * repeat_times): use at "
            "most 32, or give more uses",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(
    refused: Callable[..., list[str]], overrides: tuple[str, ...], problem: str
) -> None:
    (found,) = refused(*REUSE, *overrides)
    assert problem in found


def test_rows_of_data_come_again_by_epochs(refused: Callable[..., list[str]]) -> None:
    rows = ("mode=train", "algorithm.algorithm_type=sft", f"{BUFFER}.storage_type=file", f"{BUFFER}.path=rows.jsonl")
    (found,) = refused(*rows, f"{KEY}.enable=true", "algorithm.repeat_times=1")
    assert "holds rows of data, which come again by buffer.total_epochs: leave it out" in found
