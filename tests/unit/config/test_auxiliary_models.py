"""What is checked of the models beside the policy before a run starts, and what is found out about them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.availability import unavailable
from services.config.checks.auxiliary import TEACHER_WORKFLOWS
from services.config.checks.general import violations
from services.config.load import Loaded, load
from services.rollout.distillation import OnPolicyDistillWorkflow
from services.rollout.workflows import WORKFLOWS

Load = Callable[..., Loaded]
KEY = "explorer.auxiliary_models"
WORKFLOW = "buffer.explorer_input.default_workflow_type"
TEACHER = f"{KEY}=[{{model_path: teacher, runner: generate}}]"


@pytest.mark.parametrize(
    ("models", "key", "words"),
    [
        ("[{engine_num: 1}]", f"{KEY}[0].model_path", "is missing: give the model, or an external_model_config"),
        (
            "[{model_path: a}, {external_model_config: {enable: true}}]",
            f"{KEY}[1].external_model_config.model_name",
            "is missing: give the name that the server has for the model",
        ),
        ("[{model_path: x/judge}, {model_path: y/judge}]", KEY, "2 models are called 'judge': give each a name"),
        ("[{model_path: a, engine_num: 0}]", f"{KEY}[0].engine_num", "engine_num=0: use 1 or more"),
        ("[{model_path: a, runner: embed}]", f"{KEY}[0].runner", "auto"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused(
    refused: Callable[..., list[str]], models: str, key: str, words: str
) -> None:
    (said,) = refused(f"{KEY}={models}")
    assert key in said
    assert words in said


def test_models_of_all_kinds_are_available(loaded: Load) -> None:
    models = "[{model_path: a}, {external_model_config: {enable: true, model_name: b}}, {engine_type: fake, name: c}]"
    config = loaded(f"{KEY}={models}").config
    assert violations(config) == []
    assert unavailable(config) == []
    assert [model.name for model in config.auxiliary_models] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("{model_path: a, engine_type: sglang}", "engine_type=sglang (set vllm instead)"),
        ("{model_path: a, enable_multimodal: true}", "enable_multimodal=true (leave it out)"),
        ("{model_path: a, enable_lora: true}", "enable_lora=true (leave it out)"),
        ("{model_path: a, tensor_parallel_size: 2}", "tensor_parallel_size=2 on the CPU (set 1 instead)"),
    ],
)
def test_what_a_model_cannot_have_yet_is_told(loaded: Load, model: str, line: str) -> None:
    assert unavailable(loaded(f"{KEY}=[{model}]").config) == [f"not available yet: {KEY}[0].{line}"]


def _model(root: Path, architecture: str) -> str:
    root.mkdir()
    (root / "config.json").write_text(json.dumps({"architectures": [architecture]}), encoding="utf-8")
    return str(root)


def test_a_classifier_scores_where_neither_workflow_nor_reward_is_named(loaded: Load, tmp_path: Path) -> None:
    path = _model(tmp_path / "rm", "LlamaForSequenceClassification")
    found = loaded(f"{KEY}=[{{model_path: {path}}}]")
    (model,) = found.config.auxiliary_models
    assert (model.runner, model.max_model_len) == ("pooling", None)
    assert found.origins[f"{KEY}[0].runner"] == "derived: its config.json"
    assert [taskset.default_workflow_type for taskset in found.config.tasksets] == ["reward_model_workflow"]
    assert any("the reward is the score of rm" in note for note in found.notes)


@pytest.mark.parametrize("named", ["taskset.default_reward_fn_type=math_reward", "default_workflow_type=math_workflow"])
def test_a_classifier_that_nobody_asks_is_told(loaded: Load, tmp_path: Path, named: str) -> None:
    path = _model(tmp_path / "rm", "LlamaForSequenceClassification")
    found = loaded(f"{KEY}=[{{model_path: {path}}}]", f"buffer.explorer_input.{named}")
    assert [taskset.default_workflow_type for taskset in found.config.tasksets] == ["math_workflow"]
    assert any("(rm) is a reward model that no workflow asks" in note for note in found.notes)


def test_a_model_that_answers_leaves_the_workflow_as_it_was(loaded: Load, tmp_path: Path) -> None:
    path = _model(tmp_path / "judge", "LlamaForCausalLM")
    found = loaded(f"{KEY}=[{{model_path: {path}}}, {{engine_type: fake, name: c}}]")
    assert [model.runner for model in found.config.auxiliary_models] == ["generate", "generate"]
    assert [taskset.default_workflow_type for taskset in found.config.tasksets] == ["math_workflow"]
    assert not any("reward model" in note for note in found.notes)


def test_a_model_that_is_not_here_yet_is_taken_for_the_reward_model_that_it_may_be(loaded: Load) -> None:
    found = loaded(f"{KEY}=[{{model_path: ~/models/FsfairX-LLaMA3-RM-v0.1}}]")
    assert found.config.auxiliary_models[0].runner == "auto"
    assert [taskset.default_workflow_type for taskset in found.config.tasksets] == ["reward_model_workflow"]


def test_the_example_with_a_reward_model_is_rewarded_by_it() -> None:
    config = load(Path(__file__).parents[3] / "configs" / "examples" / "ppo_example.yaml").config
    tasksets = [*config.tasksets, *config.eval_tasksets]
    assert {taskset.default_workflow_type for taskset in tasksets} == {"reward_model_workflow"}
    assert [model.known_as for model in config.auxiliary_models if model.may_score] == ["FsfairX-LLaMA3-RM-v0.1"]


def test_the_policy_is_no_classifier_and_a_score_needs_one(refused: Callable[..., list[str]]) -> None:
    (said,) = refused("explorer.rollout_model.runner=pooling")
    assert "the policy generates text" in said
    (said,) = refused("buffer.explorer_input.default_workflow_type=reward_model_workflow")
    assert "reward_model_workflow of taskset sums needs a reward model" in said


@pytest.mark.parametrize("workflow", [*TEACHER_WORKFLOWS, "async_on_policy_distill_workflow"])
@pytest.mark.parametrize("name", ["on_policy_distill", "jsd"])
def test_distillation_needs_a_teacher_and_a_workflow_that_asks_it(
    loaded: Load, refused: Callable[..., list[str]], name: str, workflow: str
) -> None:
    distilled = f"algorithm.algorithm_type={name}"
    assert loaded(distilled, f"{WORKFLOW}={workflow}", TEACHER).config.auxiliary_models
    (said,) = refused(distilled, f"{WORKFLOW}={workflow}")
    assert said.startswith(f"{workflow} of taskset sums needs a teacher: name a model with the policy's vocabulary")
    (said,) = refused(distilled, f"{WORKFLOW}=math_workflow", TEACHER)
    assert said.startswith(
        f"algorithm.advantage_fn={name} reads a teacher's log-probs, which math_workflow of taskset sums does not "
        "give: use default_workflow_type=on_policy_distill_workflow"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{WORKFLOW}=own.module.Workflow"],
        ["plugin_dirs=[own]", f"{WORKFLOW}=my_workflow"],
        ["buffer.explorer_input.taskset.format={workflow_key: workflow}"],
        [f"{WORKFLOW}=on_policy_distill_workflow", "buffer.explorer_input.eval_tasksets=[{name: e, path: e.jsonl}]"],
        ["mode=train"],
    ],
)
def test_a_workflow_that_may_ask_a_teacher_is_left_alone(loaded: Load, overrides: list[str]) -> None:
    assert loaded("algorithm.algorithm_type=on_policy_distill", TEACHER, *overrides).config.tasksets


def test_a_teacher_is_needed_by_every_taskset_that_is_run(loaded: Load, refused: Callable[..., list[str]]) -> None:
    evaluated = "buffer.explorer_input.eval_tasksets=[{name: e, path: e.jsonl, default_workflow_type: %s}]"
    (said,) = refused(evaluated % "on_policy_distill_workflow")
    assert said.startswith("on_policy_distill_workflow of taskset e needs a teacher")
    given = ("mode=bench", f"{WORKFLOW}=on_policy_distill_workflow", evaluated % "math_workflow")
    assert loaded(*given).config.auxiliary_models == []


def test_the_workflows_that_ask_a_teacher_are_those_of_distillation() -> None:
    made = {name for name, workflow in WORKFLOWS.items() if isinstance(workflow(), OnPolicyDistillWorkflow)}
    assert made == set(TEACHER_WORKFLOWS)
