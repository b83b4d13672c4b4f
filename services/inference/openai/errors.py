"""Refusals in the form that OpenAI's clients know: `{"error": {"message", "type", "param", "code"}}`."""

from typing import Any

from pydantic import ValidationError


class ApiError(Exception):
    """A request that is not answered. `message` says what is wrong and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(error: ValidationError) -> ApiError:
    """What pydantic says of a body, in one line."""
    problems = error.errors(include_url=False, include_input=False)
    first = ".".join(map(str, problems[0]["loc"])) or None
    said = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in problems[:3])
    return ApiError(400, said, param=first)


def too_long(prompt_tokens: int, limit: int) -> ApiError:
    """A prompt that leaves no room for a response, in the code by which agent frameworks know it."""
    message = (
        f"the prompt has {prompt_tokens} tokens, and this model has room for {limit} of prompt and response together: "
        "shorten the conversation, or raise model.max_model_len"
    )
    return ApiError(400, message, param="messages", code="context_length_exceeded")


def away(reason: str) -> ApiError:
    """The model cannot answer now; clients try again by themselves."""
    return ApiError(503, reason, kind="server_error", code="service_unavailable")
