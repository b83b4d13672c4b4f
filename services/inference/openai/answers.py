"""From what was sampled to OpenAI's bodies, whole or in pieces."""

import json
import time
from collections.abc import Sequence
from typing import Any

from services.inference.engine import Tokenizer
from services.inference.openai.calls import Call
from services.inference.openai.requests import Finish
from services.inference.openai.tool_calls import Parsed

Body = dict[str, Any]


def finish_of(call: Call, parsed: Parsed) -> Finish:
    if parsed.calls:
        return "tool_calls"
    return "length" if call.completion.is_truncated else "stop"


def visible(text: str, stops: Sequence[str], is_whole: bool) -> str:
    """What a client sees of a text: up to the first stop, and, while it grows, nothing that may yet become one."""
    ends = [text.index(stop) for stop in stops if stop in text]
    if ends:
        return text[: min(ends)]
    if is_whole:
        return text
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held].rstrip("\ufffd")  # half a character


def message_of(parsed: Parsed, request_id: str, choice: int) -> Body:
    message: Body = {"role": "assistant", "content": parsed.content}
    if parsed.calls:
        message["tool_calls"] = tool_calls_of(parsed, request_id, choice)
    return message


def tool_calls_of(parsed: Parsed, request_id: str, choice: int) -> list[Body]:
    stem = request_id.rpartition("-")[2]
    return [
        {
            "id": f"call-{stem}-{choice}-{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(parsed.calls)
    ]


def token_ids_of(call: Call, is_wanted: bool) -> Body:
    """vLLM's `token_ids`, and beside them the weight version that sampled each token."""
    if not is_wanted:
        return {}
    completion = call.completion
    return {"token_ids": completion.token_ids.tolist(), "token_versions": completion.token_versions.tolist()}


def chat_logprobs(tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[float]) -> Body:
    """One entry a sampled token, its log-prob natural and of the distribution that it was drawn from."""
    content = [_logprob(tokenizer, token, logprob) for token, logprob in zip(ids, logprobs, strict=True)]
    return {"content": content, "refusal": None}


def _logprob(tokenizer: Tokenizer, token: int, logprob: float) -> Body:
    text = tokenizer.decode([token])
    return {"token": text, "logprob": float(logprob), "bytes": list(text.encode()), "top_logprobs": []}


def text_logprobs(tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[float]) -> Body:
    """The older form, of text completions."""
    tokens = [tokenizer.decode([token]) for token in ids]
    offsets = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [float(logprob) for logprob in logprobs],
        "top_logprobs": None,
        "text_offset": offsets,
    }


def usage_of(prompts: Sequence[Sequence[int]], calls: Sequence[Call]) -> Body:
    prompt = sum(len(ids) for ids in prompts)
    completion = sum(len(call.completion.token_ids) for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def envelope(kind: str, request_id: str, model: str, fingerprint: str) -> Body:
    """`system_fingerprint` names the weights: `<incarnation>.<version>`."""
    return {
        "id": request_id,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint,
    }


def event(body: Body) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"
