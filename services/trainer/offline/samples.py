"""What a row of data says, before a tokenizer is asked: a text, or a conversation with its answer. Pure.

`format` tells which keys hold what. `messages`: a list of messages (or its JSON) under `messages_key`; `plaintext`:
texts under `prompt_key` and `response_key`, laid out as a conversation; `chatpair`: messages under each of these two.
Of dpo, `chosen_key` and `rejected_key` stand in the place of the answer.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.config.rows import RowSchema
from services.rollout.config import FormatConfig
from services.trainer.offline.errors import RowFault

Row = Mapping[str, Any]
Message = dict[str, Any]


@dataclass(frozen=True)
class Text:
    """A text of which every token is learned."""

    text: str


@dataclass(frozen=True)
class Conversation:
    """Messages, of which those from place `answer_at` on are the answer. `tools` is what the model may call."""

    messages: tuple[Message, ...]
    answer_at: int
    tools: tuple[Any, ...] = ()


Sample = Text | Conversation


def samples(row: Row, layout: FormatConfig, schema: RowSchema) -> tuple[Sample, ...]:
    """What is learned from a row: of dpo the chosen answer and the rejected one, else one sample.

    Raises:
        RowFault: a key is missing, or holds something else than its format says.
    """
    return _READERS[schema](row, layout)


def _sft(row: Row, layout: FormatConfig) -> tuple[Sample, ...]:
    if layout.prompt_type == "messages":
        messages = _messages(row, layout.messages_key)
        _check_answered(messages, layout)
        answer = messages[-1:]
        return (_conversation(row, layout, messages[:-1], answer),)
    return (_conversation(row, layout, _prompt(row, layout), _answer(row, layout.response_key, layout)),)


def _cpt(row: Row, layout: FormatConfig) -> tuple[Sample, ...]:
    if layout.prompt_type == "plaintext":
        return (Text(_text(row, layout.prompt_key)),)
    return (_conversation(row, layout, _messages(row, layout.messages_key), []),)


def _dpo(row: Row, layout: FormatConfig) -> tuple[Sample, ...]:
    prompt = _prompt(row, layout)
    keys = (layout.chosen_key, layout.rejected_key)
    return tuple(_conversation(row, layout, prompt, _answer(row, key, layout)) for key in keys)


_READERS: dict[RowSchema, Callable[[Row, FormatConfig], tuple[Sample, ...]]] = {"sft": _sft, "cpt": _cpt, "dpo": _dpo}


def _conversation(row: Row, layout: FormatConfig, prompt: list[Message], answer: list[Message]) -> Conversation:
    system = _system_prompt(row, layout)
    begun = [*prompt, *answer]
    if system and (not begun or begun[0]["role"] != "system"):
        prompt = [{"role": "system", "content": system}, *prompt]
    return Conversation((*prompt, *answer), len(prompt), _tools(row, layout.tools_key))


def _prompt(row: Row, layout: FormatConfig) -> list[Message]:
    if layout.prompt_type == "plaintext":
        return [{"role": "user", "content": _text(row, layout.prompt_key)}]
    return _messages(row, layout.messages_key if layout.prompt_type == "messages" else layout.prompt_key)


def _answer(row: Row, key: str, layout: FormatConfig) -> list[Message]:
    """Messages are taken as they are, also as JSON; any other text is the assistant's."""
    if layout.prompt_type == "plaintext" or not _holds_messages(_held(row, key)):
        return [{"role": "assistant", "content": _text(row, key)}]
    return _messages(row, key)


def _holds_messages(value: object) -> bool:
    if not isinstance(value, str):
        return True
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        return False
    first = parsed[0] if isinstance(parsed, list) and parsed else parsed
    return isinstance(first, dict) and "role" in first


def _check_answered(messages: list[Message], layout: FormatConfig) -> None:
    roles = [message["role"] for message in messages]
    if layout.enable_concatenated_multi_turn and "assistant" not in roles:
        raise RowFault(f"{layout.messages_key!r} holds no message of the assistant, so nothing is to be learned")
    if not layout.enable_concatenated_multi_turn and roles[-1] != "assistant":
        raise RowFault(
            f"{layout.messages_key!r} ends with a message of {roles[-1]!r}, and the last one is what is learned: end "
            "it with the assistant's, or set format.enable_concatenated_multi_turn"
        )


def _messages(row: Row, key: str) -> list[Message]:
    """The messages under `key`: a list, its JSON, or one message. What is null in them was never said."""
    value = _held(row, key)
    if isinstance(value, str):
        value = _parsed(value, key)
    value = [value] if isinstance(value, Mapping) else value
    if not isinstance(value, Sequence) or not value:
        raise RowFault(f"{key!r} holds {_named(value)}, not a list of messages")
    return [_message(message, key, place) for place, message in enumerate(value)]


def _message(value: object, key: str, place: int) -> Message:
    if not isinstance(value, Mapping):
        raise RowFault(f"{key!r}[{place}] is {_named(value)}, not a message with role and content")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or not role:
        raise RowFault(f"{key!r}[{place}] has no role: a message is {{'role': ..., 'content': ...}}")
    if content is None and not value.get("tool_calls"):
        raise RowFault(f"{key!r}[{place}] has no content")
    said: Message = _said({**value, "content": content or ""})
    return said


def _tools(row: Row, key: str) -> tuple[Any, ...]:
    value = row.get(key)
    if isinstance(value, str):
        value = _parsed(value, key) if value.strip() else None
    if value is None or value == []:
        return ()
    if not isinstance(value, Sequence):
        raise RowFault(f"{key!r} holds {_named(value)}, not a list of tools")
    return tuple(_said(value))


def _system_prompt(row: Row, layout: FormatConfig) -> str | None:
    if layout.system_prompt_key is not None:
        return _text(row, layout.system_prompt_key)
    return layout.system_prompt


def _text(row: Row, key: str) -> str:
    value = _held(row, key)
    if isinstance(value, int | float):
        return str(value)  # an answer such as 42, which JSON makes a number
    if not isinstance(value, str):
        raise RowFault(f"{key!r} holds {_named(value)}, not a text")
    return value


def _held(row: Row, key: str) -> Any:
    value = row.get(key)
    if value is None:
        there = ", ".join(map(repr, row)) or "none"
        raise RowFault(f"{key!r} is {'null' if key in row else f'no key (there: {there})'}")
    return value


def _parsed(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RowFault(f"{key!r} is a text that is no JSON: {error}") from error


def _said(value: Any) -> Any:
    """Without the nulls by which a reader of columns fills the keys of other rows."""
    if isinstance(value, Mapping):
        return {name: _said(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_said(inner) for inner in value]
    return value


def _named(value: object) -> str:
    return "nothing" if value in (None, [], "") else f"a {type(value).__name__}"
