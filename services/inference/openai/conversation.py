"""From OpenAI's messages to the text that a model reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.inference.engine import Tokenizer
from services.inference.openai.errors import ApiError
from services.inference.openai.requests import ChatRequest

_ROLES = {"developer": "system"}


def laid_out(
    tokenizer: Tokenizer, request: ChatRequest, *, chat_template: str | None, enable_thinking: bool | None
) -> str:
    """The prompt, its special tokens included.

    Raises:
        ApiError: a message that a chat template cannot lay out.
    """
    options: dict[str, Any] = {
        "tokenize": False,
        "add_generation_prompt": not request.continue_final_message,
        "continue_final_message": request.continue_final_message,
        "chat_template": chat_template,
        "enable_thinking": enable_thinking,
        "tools": request.usable_tools or None,
        **request.chat_template_kwargs,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    messages = [_message(message, place) for place, message in enumerate(request.messages)]
    try:
        return str(tokenizer.apply_chat_template(messages, **chosen))
    except Exception as error:  # a template is a program of the model's makers, and raises what it likes
        said = f"the chat template cannot lay out these messages: {type(error).__name__}: {str(error)[:300]}"
        raise ApiError(400, said, param="messages") from error


def _message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise ApiError(400, f"messages.{place} has no role", param=f"messages.{place}.role")
    laid: dict[str, Any] = {**message, "role": _ROLES.get(role, role), "content": _text(message.get("content"), place)}
    if message.get("tool_calls"):
        laid["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return {key: value for key, value in laid.items() if value is not None}


def _text(content: object, place: int) -> str:
    """The text of a message; of one in parts, all parts one after the other."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in ("text", "input_text"):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ApiError(
                400,
                f"messages.{place}.content has a part of type {kind!r}: this model reads text alone",
                param="messages",
            )
    return "".join(str(part.get("text", "")) for part in parts)


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a map: templates write them as JSON themselves."""
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:
            pass  # not JSON: as the model has said it
    return {**call, "function": function}
