"""Tool calls in a response: `<tool_call>{...}</tool_call>` as Hermes and Qwen models write them, or bare JSON."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_FENCE = re.compile(r"^```(?:json)?\s*(.*?)\s*```$", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """One call. `arguments` is JSON text, as OpenAI has it."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Parsed:
    """A response without its calls, and the calls. `content` is None where nothing else was said."""

    content: str | None
    calls: tuple[ToolCall, ...] = ()


def hermes(text: str) -> Parsed:
    """Calls in tags. A tag that holds no call leaves the response as it is."""
    found = [_call(_json(body)) for body in _TAGGED.findall(text)]
    calls = tuple(call for call in found if call is not None)
    if not calls or len(calls) < len(found):
        return Parsed(text)
    return Parsed(_TAGGED.sub("", text).strip() or None, calls)


def bare_json(text: str) -> Parsed:
    """A response that is one call, or a list of calls, and nothing else."""
    stripped = text.strip()
    fenced = _FENCE.match(stripped)
    value = _json(fenced.group(1) if fenced else stripped)
    found = [_call(each) for each in (value if isinstance(value, list) else [value])]
    calls = tuple(call for call in found if call is not None)
    return Parsed(None, calls) if calls and len(calls) == len(found) else Parsed(text)


def any_style(text: str) -> Parsed:
    """Tags where there are some, else bare JSON."""
    tagged = hermes(text)
    return tagged if tagged.calls else bare_json(text)


PARSERS: dict[str | None, Callable[[str], Parsed]] = {
    None: any_style,
    "hermes": hermes,
    "json": bare_json,
    "llama3_json": bare_json,
}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(value["name"], text)
