"""Experiences: sampled responses with everything that training needs, published as whole groups."""

from typing import ClassVar, Self

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from schemas.arrays import Float32Array, Int32Array, MaskArray
from schemas.message import Message, Value
from schemas.tasks import TaskIdentity

BASELINE_METRIC = "reward_baseline"
"""The metric of an experience that its reward is compared with by advantage functions that want one."""

_NONE = np.zeros(0, dtype=np.float32)
_NONE.setflags(write=False)


class Experience(Value):
    """One sampled response of `T` tokens, of which the first `prompt_length` are the prompt.

    `action_mask`, `logprobs` (natural log, of the sampling weights) and `token_versions` (the weight version that
    sampled each token) have `T - prompt_length` elements. `logprobs` are those of the distribution at `temperature`.
    `teacher_logprobs` are those of another model for the same tokens, or empty. Of an episode of several steps, `step`
    counts from 0, `state` names the state that the step was taken in (equal states have equal names), and
    `step_reward` is the step's own reward, where there is one beside the episode's `reward`.
    """

    position: int = Field(ge=0)
    tokens: Int32Array
    prompt_length: int = Field(ge=1)
    action_mask: MaskArray
    logprobs: Float32Array
    token_versions: Int32Array
    reward: FiniteFloat
    metrics: dict[str, FiniteFloat] = {}
    prompt_text: str = ""
    response_text: str = ""
    is_truncated: bool = False
    step: int = 0
    temperature: FiniteFloat = 1.0
    teacher_logprobs: Float32Array = Field(default_factory=lambda: _NONE)
    state: str = ""
    step_reward: FiniteFloat | None = None

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        length = len(self.tokens) - self.prompt_length
        if length < 1:
            raise ValueError(f"{len(self.tokens)} tokens leave no response after a prompt of {self.prompt_length}")
        if not len(self.action_mask) == len(self.logprobs) == len(self.token_versions) == length:
            raise ValueError(self._misfit(length))
        if len(self.teacher_logprobs) not in (0, length):
            raise ValueError(f"teacher_logprobs has {len(self.teacher_logprobs)} elements for {length} tokens")
        if self.action_mask.tobytes().translate(None, b"\x00\x01"):
            raise ValueError("action_mask holds a value other than 0 and 1")
        if np.minimum.reduce(self.tokens) < 0:
            raise ValueError("a token id is negative")
        return self

    def _misfit(self, length: int) -> str:
        names = ("action_mask", "logprobs", "token_versions")
        name, found = next((name, len(getattr(self, name))) for name in names if len(getattr(self, name)) != length)
        return f"{name} has {found} elements for a response of {length} tokens"

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length


class GroupSampled(Message):
    """All experiences of one task: the unit of publishing, because group advantages need the whole group.

    `tokenizer` is the fingerprint of the tokenizer that made the token ids; empty where it is not known. `retry` is
    that of the task that was answered.
    """

    schema_name: ClassVar[str] = "group_sampled"

    run: str
    task: TaskIdentity
    repeat_times: int = Field(ge=1)
    explorer: str
    incarnation: int = Field(default=0, ge=0)
    experiences: tuple[Experience, ...] = Field(min_length=1)
    attempt: int = Field(default=1, ge=1)
    started_at: float = 0.0
    finished_at: float = 0.0
    tokenizer: str = ""
    retry: int = Field(default=0, ge=0)


class TaskAbandoned(Message):
    """A task that failed `max_deliver` times. It stands in the experience stream in place of its group, so that
    the composition of batches remains a function of that stream alone."""

    schema_name: ClassVar[str] = "task_abandoned"

    run: str
    task: TaskIdentity
    repeat_times: int = Field(ge=1)
    explorer: str
    attempts: int = Field(ge=1)
    error: str
    abandoned_at: float = 0.0
    retry: int = Field(default=0, ge=0)
