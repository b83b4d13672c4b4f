"""The policy as clients meet it, and the taskset of a run that serves."""

from services.config.tree import RunConfig
from services.inference.engine import Engine
from services.inference.openai.served import Served
from services.rollout.config import TasksetConfig
from services.rollout.policy import prompting_of, sampling_of
from services.rollout.tasksets import Taskset

SERVED = "served"


def served_taskset() -> Taskset:
    """One row, which every epoch brings again: each task stands for one group of conversations, epoch `n` for the
    `n`-th of the run."""
    config = TasksetConfig(name=SERVED, path="conversations with users (mode: serve)", default_workflow_type=SERVED)
    return Taskset(SERVED, config, [{}], ())


def policy_served(config: RunConfig, engine: Engine) -> Served:
    """The rollout model behind an endpoint. A request that says nothing samples as the run does."""
    model, prompting = config.rollout_model, prompting_of(config)
    return Served(
        model.name or model.model_path or config.model.model_path,
        engine,
        sampling_of(config.rollout_args(served_taskset().config)),
        max_model_len=prompting.max_model_len,
        chat_template=prompting.custom_chat_template,
        enable_thinking=prompting.enable_thinking,
        tool_call_parser=model.tool_call_parser,
    )
