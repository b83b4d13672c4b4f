"""What must hold of the models beside the policy: judges, reward models, teachers."""

from collections import Counter
from collections.abc import Callable, Iterator

from services.config.algorithms.choice import part_of
from services.config.algorithms.parts import ADVANTAGES
from services.config.errors import Problem
from services.config.tree import RunConfig
from services.rollout.config import REWARD_MODEL_WORKFLOW, TasksetConfig

KEY = "explorer.auxiliary_models"
TEACHER_WORKFLOWS = ("on_policy_distill_workflow", "on_policy_distill_math_workflow")
"""The workflows of our own that ask a teacher for its log-probs."""


def _models_can_be_found(config: RunConfig) -> Iterator[Problem]:
    for place, model in enumerate(config.explorer.auxiliary_models):
        external = model.external_model_config
        if external.enable and not external.model_name:
            key = f"{KEY}[{place}].external_model_config.model_name"
            yield Problem(key, f"{key} is missing: give the name that the server has for the model")
        if not external.enable and not model.model_path and model.engine_type != "fake":
            key = f"{KEY}[{place}].model_path"
            yield Problem(key, f"{key} is missing: give the model, or an external_model_config with enable: true")


def _names_differ(config: RunConfig) -> Iterator[Problem]:
    names = Counter(model.known_as for model in config.explorer.auxiliary_models)
    for name, times in names.items():
        if times > 1:
            yield Problem(KEY, f"{KEY}: {times} models are called {name!r}: give each a name of its own")


def _engines_are_counted(config: RunConfig) -> Iterator[Problem]:
    for place, model in enumerate(config.explorer.auxiliary_models):
        if model.engine_num < 1:
            key = f"{KEY}[{place}].engine_num"
            yield Problem(key, f"{key}={model.engine_num}: use 1 or more")


def _the_policy_generates(config: RunConfig) -> Iterator[Problem]:
    if config.explorer.rollout_model.runner == "pooling":
        key = "explorer.rollout_model.runner"
        yield Problem(key, f"{key}=pooling: the policy generates text; a reward model stands under {KEY}")


def _a_reward_model_is_there(config: RunConfig) -> Iterator[Problem]:
    asked = [each.name for each in _rewarded(config)]
    if asked and not any(model.may_score for model in config.explorer.auxiliary_models):
        yield Problem(
            KEY, f"{REWARD_MODEL_WORKFLOW} of taskset {asked[0]} needs a reward model: name a classifier under {KEY}"
        )


def _a_teacher_is_there(config: RunConfig) -> Iterator[Problem]:
    if config.auxiliary_models or config.plugin_dirs or config.mode in ("train", "serve"):
        return
    for taskset in (*(config.tasksets if config.mode != "bench" else []), *config.eval_tasksets):
        if _asks_a_teacher(taskset):
            message = f"{taskset.default_workflow_type} of taskset {taskset.name} needs a teacher"
            yield Problem(KEY, f"{message}: name a model with the policy's vocabulary under {KEY}")
            return


def _a_teacher_is_asked(config: RunConfig) -> Iterator[Problem]:
    name = part_of(config, "advantage_fn")
    part = ADVANTAGES.get(name)
    if part is None or "teacher_logprob" not in part.reads:
        return
    if config.plugin_dirs or config.replay is not None or config.mode not in ("both", "explore", "colocate"):
        return
    for taskset in config.tasksets:
        workflow = taskset.default_workflow_type or ""
        if not (_asks_a_teacher(taskset) or "." in workflow or taskset.format.workflow_key):
            told = f"algorithm.advantage_fn={name} reads a teacher's log-probs, which {workflow} of taskset"
            message = f"{told} {taskset.name} does not give: use default_workflow_type={TEACHER_WORKFLOWS[0]}"
            yield Problem("buffer.explorer_input", message)


def who_asks_the_reward_model(config: RunConfig) -> Iterator[str]:
    """Notices: that it gives the rewards though nobody said so, or that nobody asks it.

    A workflow of one's own may ask it, so the latter is said only where there are none.
    """
    shared = config.buffer.explorer_input
    scored = [taskset.name for taskset in _rewarded(config)]
    reward_models = [model.known_as for model in config.explorer.auxiliary_models if model.may_score]
    if scored and reward_models and not (shared.default_workflow_type or _is_named(config)):
        yield (
            f"no workflow and no reward is named for {', '.join(scored)}: the reward is the score of "
            f"{reward_models[0]} (default_workflow_type={REWARD_MODEL_WORKFLOW})"
        )
    if not scored and not config.plugin_dirs and not _names_workflows_by_row(config):
        for place, model in enumerate(config.explorer.auxiliary_models):
            if model.runner == "pooling" and config.tasksets:
                yield (
                    f"{KEY}[{place}] ({model.known_as}) is a reward model that no workflow asks: "
                    f"set default_workflow_type={REWARD_MODEL_WORKFLOW}"
                )


def _is_named(config: RunConfig) -> bool:
    given = config.buffer.explorer_input
    every = [*([given.taskset] if given.taskset else given.tasksets), *given.eval_tasksets]
    return all(taskset.default_workflow_type for taskset in every)


def _names_workflows_by_row(config: RunConfig) -> bool:
    return any(taskset.format.workflow_key for taskset in (*config.tasksets, *config.eval_tasksets))


def _asks_a_teacher(taskset: TasksetConfig) -> bool:
    return (taskset.default_workflow_type or "").removeprefix("async_") in TEACHER_WORKFLOWS


def _rewarded(config: RunConfig) -> Iterator[TasksetConfig]:
    """The tasksets whose rewards are a reward model's scores."""
    for taskset in (*config.tasksets, *config.eval_tasksets):
        if (taskset.default_workflow_type or "").removeprefix("async_") == REWARD_MODEL_WORKFLOW:
            yield taskset


AUXILIARY_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _models_can_be_found,
    _names_differ,
    _engines_are_counted,
    _the_policy_generates,
    _a_reward_model_is_there,
    _a_teacher_is_there,
    _a_teacher_is_asked,
)
