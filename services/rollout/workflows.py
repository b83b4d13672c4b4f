"""The table of workflows by their names. `register_workflow` and `register_agent` are how plug-ins add to it."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from services.rollout.agents import Agent, OpenAIAgentWorkflow
from services.rollout.distillation import OnPolicyDistillMathWorkflow, OnPolicyDistillWorkflow
from services.rollout.errors import UnknownName
from services.rollout.frozen_lake import FrozenLakeWorkflow
from services.rollout.gymnasium_environment import (
    GymnasiumPropagationWorkflow,
    GymnasiumStepWorkflow,
    GymnasiumWorkflow,
)
from services.rollout.judging import MathRewardModelWorkflow, RubricJudgeExternalWorkflow, RubricJudgeWorkflow
from services.rollout.multi_turn import MultiTurnWorkflow, RewardPropagationWorkflow, StepWiseRewardWorkflow
from services.rollout.prompts import BOXED_PROMPT, THINK_PROMPT
from services.rollout.reward_model import RewardModelWorkflow
from services.rollout.ruler import MathRulerWorkflow, MathTrainableRulerWorkflow
from services.rollout.single_turn import (
    ExactMatchWorkflow,
    MathBoxedWorkflow,
    MathEvalWorkflow,
    MathWorkflow,
    SimpleWorkflow,
)
from services.rollout.sudoku import SudokuWorkflow
from services.rollout.tool_calls import ToolCallWorkflow
from services.rollout.workflow import AnyWorkflow

__all__ = [
    "BOXED_PROMPT",
    "THINK_PROMPT",
    "WORKFLOWS",
    "MathBoxedWorkflow",
    "MathWorkflow",
    "MultiTurnWorkflow",
    "OpenAIAgentWorkflow",
    "RewardPropagationWorkflow",
    "SimpleWorkflow",
    "StepWiseRewardWorkflow",
    "register_agent",
    "register_workflow",
    "workflow_named",
]

ASYNC = "async_"
"""Trinity-RFT has workflows twice; here all are asynchronous, and both names mean the same."""

WORKFLOWS: dict[str, Callable[[], AnyWorkflow]] = {
    "exact_match_workflow": ExactMatchWorkflow,
    "frozen_lake_workflow": FrozenLakeWorkflow,
    "gymnasium_propagation_workflow": GymnasiumPropagationWorkflow,
    "gymnasium_step_workflow": GymnasiumStepWorkflow,
    "gymnasium_workflow": GymnasiumWorkflow,
    "math_boxed_workflow": MathBoxedWorkflow,
    "math_eval_workflow": MathEvalWorkflow,
    "math_rm_workflow": MathRewardModelWorkflow,
    "math_ruler_workflow": MathRulerWorkflow,
    "math_trainable_ruler_workflow": MathTrainableRulerWorkflow,
    "math_workflow": MathWorkflow,
    "on_policy_distill_math_workflow": OnPolicyDistillMathWorkflow,
    "on_policy_distill_workflow": OnPolicyDistillWorkflow,
    "reward_model_workflow": RewardModelWorkflow,
    "rubric_judge_openai_workflow": RubricJudgeExternalWorkflow,
    "rubric_judge_workflow": RubricJudgeWorkflow,
    "simple_workflow": SimpleWorkflow,
    "sudoku_workflow": SudokuWorkflow,
    "tool_call_workflow": ToolCallWorkflow,
}

W = TypeVar("W", bound=Callable[[], AnyWorkflow])


def register_workflow(name: str) -> Callable[[W], W]:
    """A decorator for plug-ins: adds a workflow, or replaces one of the same name."""

    def add(workflow: W) -> W:
        WORKFLOWS[name] = workflow
        return workflow

    return add


def register_agent(name: str) -> Callable[[Agent], Agent]:
    """A decorator for plug-ins: adds an agent as a workflow (see `services.rollout.agents`)."""

    def add(agent: Agent) -> Agent:
        WORKFLOWS[name] = partial(OpenAIAgentWorkflow, agent)
        return agent

    return add


def workflow_named(name: str) -> AnyWorkflow:
    """The workflow of that name, with or without `async_` before it.

    Raises:
        UnknownName: there is none.
    """
    found = WORKFLOWS.get(name) or WORKFLOWS.get(name.removeprefix(ASYNC))
    if found is None:
        raise UnknownName("workflow", name, WORKFLOWS)
    return found()
