"""A person sees each value, where it came from, and how the sizes hang together."""

from collections.abc import Callable

from services.config.load import Loaded
from services.config.show import explain_sizes, render

Load = Callable[..., Loaded]


def told(text: str) -> dict[str, str]:
    """What stands before the comment of each line, mapped to the comment."""
    rows = [line.partition("  # ") for line in text.splitlines() if "  # " in line]
    return {before.strip(): origin for before, _, origin in rows}


def test_each_value_is_followed_by_its_origin(loaded: Load) -> None:
    rows = told(render(loaded("buffer.total_steps=5")))
    assert rows["model_path: some/model"] in ("c.yaml:7", "derived: model.model_path")
    assert rows["total_steps: 5"] == "override"
    assert rows["train_batch_size: 32"] == "derived: batch_size 4 * repeat_times 8"
    assert rows["sync_offset: 0"] == "default"
    assert rows["url: null"] == "default"


def test_defaults_can_be_left_out(loaded: Load) -> None:
    text = render(loaded(), with_defaults=False)
    assert "# default" not in text.replace("# default of", "")
    assert "batch_size: 4" in text
    assert "bus:" not in text


def test_the_comments_stand_in_one_column(loaded: Load) -> None:
    text = render(loaded(), with_defaults=False)
    columns = {line.index("  # ") for line in text.splitlines() if "  # " in line}
    assert len(columns) == 1


def test_a_long_text_is_shortened_to_one_line(loaded: Load) -> None:
    result = loaded(extra='explorer:\n  env_vars: {A: "' + "x" * 500 + '\\nsecond"}\n')
    (line,) = [line for line in render(result).splitlines() if line.strip().startswith("A:")]
    assert len(line) < 120


def test_the_sizes_are_explained(loaded: Load) -> None:
    text = "\n".join(explain_sizes(loaded("synchronizer.sync_interval=2", "synchronizer.sync_offset=1").config))
    assert "batch_size 4 * repeat_times 8 = 32 experiences" in text
    assert "every 2 optimizer steps (sync_interval)" in text
    assert "at most 4 steps, 2 * (sync_offset + sync_interval - 1)" in text
    assert "1 epochs (total_epochs)" in text
