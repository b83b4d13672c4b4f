"""The table: it knows all of veRL's keys, names none but ours, and is what the documentation shows."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.config.keys import split
from services.config.tree import RunConfig
from services.convert.documenting import with_table
from services.convert.placement import RULES
from services.convert.row import EVALUATION, PPO, SFT, counterparts
from services.convert.table import TABLE, row_of

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "verl.md"
FILES = {
    "_generated_ppo_trainer.yaml": PPO,
    "_generated_ppo_megatron_trainer.yaml": PPO,
    "_generated_ppo_veomni_trainer.yaml": PPO,
    "_generated_ppo_torchtitan_trainer.yaml": PPO,
    "evaluation.yaml": EVALUATION,
    "sft_trainer_engine.yaml": SFT,
}


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{name}.")
        elif name != "_target_":
            yield f"{above}{name}"


@pytest.mark.parametrize("name", FILES)
def test_every_key_of_verls_own_configuration_has_a_row(name: str) -> None:
    found = importlib.util.find_spec("verl")
    assert found is not None
    assert found.origin is not None
    file = Path(found.origin).parent / "trainer" / "config" / name
    keys = list(leaves(yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)))
    assert len(keys) > 5
    assert [key for key in keys if row_of(key, FILES[name]) is None] == []


def test_the_tables_counterparts_are_keys_of_ours() -> None:
    names = [name.strip() for row in counterparts(TABLE) for name in row.ours.split(",")]
    names += [name.strip() for rule in RULES for name in rule.ours.split(",") if "." in name]
    assert len(names) > 150
    assert [name for name in names if not _is_ours(name)] == []


def _is_ours(name: str) -> bool:
    """Whether a dotted key, or the last word of one, is one of ours; what is a mapping takes any name."""
    section: Any = RunConfig
    for part in split(name.replace("[]", "[0]").replace("*[0]", "tasksets[0]")):
        if isinstance(part, int) or section is None:
            continue
        fields = getattr(section, "model_fields", None)
        if fields is None:
            return True  # below a mapping, such as policy_loss_fn_args
        if part not in fields:
            return False
        section = _inner(fields[part].annotation)
    return True


def _inner(annotation: Any) -> Any:
    """The section that an annotation names, alone or in a list; `object` for a mapping."""
    arms = [annotation, *getattr(annotation, "__args__", ())]
    arms += [inner for arm in arms for inner in getattr(arm, "__args__", ())]
    found = [arm for arm in arms if hasattr(arm, "model_fields")]
    return found[0] if found else object


def test_every_row_says_what_becomes_of_its_key() -> None:
    assert [row.verl for row in TABLE if row.way is None and not row.note] == []
    assert [row.verl for row in TABLE if row.way is not None and not row.ours] == []


def test_the_documentation_shows_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "write it anew: python -m services.convert.documenting docs/verl.md"


def test_a_conversion_imports_neither_torch_nor_verl() -> None:
    script = (
        "import sys\nfrom services.convert.sources import from_arguments\n"
        "from services.convert.conversion import converted\nfrom services.convert.writing import written\n"
        "written(converted(from_arguments(['python3', '-m', 'verl.trainer.main_ppo', 'data.seed=1'], {}).said))\n"
        "print([name for name in ('torch', 'verl', 'ray', 'vllm', 'transformers', 'nats') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
