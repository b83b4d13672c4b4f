"""What a client may ask for, as OpenAI and vLLM name it. Keys that are not known are passed over, as OpenAI does."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_CHOICES = 128


class _Request(BaseModel):
    """What chat and text have in common. `top_k` to `return_token_ids` are vLLM's additions."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str = ""
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    temperature: float | None = Field(default=None, ge=0.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    top_k: int | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    repetition_penalty: float | None = Field(default=None, gt=0.0)
    ignore_eos: bool | None = None
    return_token_ids: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether the last piece of a stream is to count tokens."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatRequest(_Request):
    """A conversation to be answered."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: bool = False

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else list(self.tools or ())


class TextRequest(_Request):
    """A text, or the ids of its tokens, to be continued."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=1)
    echo: bool = False
    suffix: str | None = None

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probs of the prompt's own tokens are wanted: what a teacher is asked for."""
        return self.prompt_logprobs is not None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt."""
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            return [given]
        return list(given)


Finish = Literal["stop", "length", "tool_calls"]
