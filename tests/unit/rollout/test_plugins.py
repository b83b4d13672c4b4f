"""Plug-ins bring workflows and rewards; a faulty one is named with its cause."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.config.tree import RunConfig
from services.rollout.agents import OpenAIAgentWorkflow
from services.rollout.errors import PluginError, RolloutError, UnknownName
from services.rollout.plugins import load_own, load_plugins
from services.rollout.rewards import REWARDS, Answer, reward_named
from services.rollout.workflows import WORKFLOWS, workflow_named

PLUGIN = """\
from services.rollout.rewards import register_reward
from services.rollout.workflows import SimpleWorkflow, register_workflow

@register_reward("shout_reward")
def shout(answer):
    return {"shout": float(answer.response.isupper())}

@register_workflow("shout_workflow")
class ShoutWorkflow(SimpleWorkflow):
    default_reward = "shout_reward"
"""


@pytest.fixture(autouse=True)
def _clean_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    rewards, workflows = dict(REWARDS), dict(WORKFLOWS)
    for module in ("rewards", "plugins"):
        monkeypatch.setattr(f"services.rollout.{module}.REWARDS", rewards)
    for module in ("workflows", "plugins"):
        monkeypatch.setattr(f"services.rollout.{module}.WORKFLOWS", workflows)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("trinity_plugin_"):
            del sys.modules[name]


def test_a_plug_in_brings_a_workflow_and_a_reward(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(PLUGIN)
    (tmp_path / "notes.txt").write_text("not Python")
    assert load_plugins([tmp_path]) == ("trinity_plugin_shout",)
    assert reward_named("shout_reward")(Answer("HI", "")) == {"shout": 1.0}
    assert type(workflow_named("shout_workflow")).__name__ == "ShoutWorkflow"


def test_a_plug_in_is_imported_once(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch(exist_ok=False)\n"
    )
    assert load_plugins([tmp_path]) == load_plugins([tmp_path])


def test_a_faulty_plug_in_is_named_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("import no_such_module\n")
    with pytest.raises(PluginError, match=r"faulty.py: ModuleNotFoundError: No module named 'no_such_module'"):
        load_plugins([tmp_path])
    (tmp_path / "faulty.py").write_text("def (:\n")
    with pytest.raises(PluginError, match=r"faulty.py: SyntaxError"):
        load_plugins([tmp_path])


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="absent: is not a directory"):
        load_plugins([tmp_path / "absent"])


def test_two_plug_ins_of_one_name_are_refused(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "same.py").write_text("")
    with pytest.raises(PluginError, match=r"b.same.py: has the same name as .*a.same.py: rename one of them"):
        load_plugins([tmp_path / "a", tmp_path / "b"])


MODULE = """\
from services.rollout.workflows import SimpleWorkflow

class Own(SimpleWorkflow):
    default_reward = "own_package.parts.shout"

async def agent(client, task):
    return 1.0

def shout(answer, by=1.0):
    return {"shout": by * answer.response.isupper()}

number = 3
"""


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(MODULE)
    (package / "broken.py").write_text("1/0")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_package"]:
        del sys.modules[name]


def naming(workflow: str | None = None, reward: str | None = None) -> RunConfig:
    taskset = {"path": "x.jsonl", "default_workflow_type": workflow, "default_reward_fn_type": reward}
    return RunConfig.model_validate({"buffer": {"explorer_input": {"taskset": taskset}}})


@pytest.mark.usefixtures("own_package")
def test_the_configuration_may_name_what_an_installed_package_holds() -> None:
    load_own(naming("own_package.parts.Own", "own_package.parts.shout"))
    assert type(workflow_named("own_package.parts.Own")).__name__ == "Own"
    assert reward_named("own_package.parts.shout")(Answer("A", ""), by=2.0) == {"shout": 2.0}
    load_own(naming("own_package.parts.agent"))
    assert isinstance(workflow_named("own_package.parts.agent"), OpenAIAgentWorkflow)


@pytest.mark.usefixtures("own_package")
def test_nothing_is_imported_because_a_task_names_it() -> None:
    with pytest.raises(UnknownName, match=r"unknown workflow 'own_package.parts.Own'"):
        workflow_named("own_package.parts.Own")
    with pytest.raises(UnknownName, match=r"unknown reward 'own_package.parts.shout'"):
        reward_named("own_package.parts.shout")
    assert "own_package" not in sys.modules


@pytest.mark.usefixtures("own_package")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (naming("own_package.parts.Owm"), r"did you mean 'own_package.parts.Own'"),
        (naming("own_package.parts.number"), "it is no class with episode or group_episodes, and no agent"),
        (naming(reward="own_package.parts.number"), "unknown reward 'own_package.parts.number': it is no function"),
        (naming(reward="own_package.parts.Own"), "it is no function"),
        (naming("own_package.missing.Own"), "own_package.missing: ModuleNotFoundError"),
        (naming("own_package.broken.Own"), "own_package.broken: ZeroDivisionError: division by zero"),
    ],
)
def test_a_dotted_name_that_leads_nowhere_is_told(config: RunConfig, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        load_own(config)
