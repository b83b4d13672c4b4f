"""Whole answers in OpenAI's form."""

from collections.abc import Callable, Mapping, Sequence

from services.inference.openai.answers import (
    Body,
    chat_logprobs,
    envelope,
    finish_of,
    message_of,
    text_logprobs,
    token_ids_of,
    usage_of,
    visible,
)
from services.inference.openai.calls import Call
from services.inference.openai.requests import ChatRequest, TextRequest
from services.inference.openai.served import Prompt, Served
from services.inference.openai.tool_calls import Parsed


def chat_body(served: Served, asked: ChatRequest, prompt: Prompt, calls: Sequence[Call], request_id: str) -> Body:
    """A conversation's answer, a choice a call."""
    stops = served.sampling(asked, prompt, 0).stop
    choices: list[Body] = []
    for call in calls:
        parsed = served.parsed(visible(call.completion.text, stops, is_whole=True), asked)
        choices.append(
            {
                "index": call.choice,
                "message": message_of(parsed, request_id, call.choice),
                "logprobs": _logprobs(served, call, chat_logprobs) if asked.logprobs else None,
                "finish_reason": finish_of(call, parsed),
                **token_ids_of(call, asked.return_token_ids),
            }
        )
    told: Body = {"prompt_token_ids": list(prompt.ids)} if asked.return_token_ids else {}
    return {**_envelope("chat.completion", served, [prompt], calls, request_id), "choices": choices, **told}


def text_body(
    served: Served,
    asked: TextRequest,
    prompts: Sequence[Prompt],
    calls: Sequence[Call],
    request_id: str,
    scores: Mapping[tuple[int, ...], Sequence[float]],
) -> Body:
    """What texts go on with. `scores` are the log-probs of the tokens of prompts, from the second on."""
    stops = served.sampling(asked, prompts[0], 0).stop
    choices: list[Body] = []
    for call in calls:
        text = visible(call.completion.text, stops, is_whole=True)
        told: Body = {"prompt_token_ids": list(call.prompt_ids)} if asked.return_token_ids else {}
        if call.prompt_ids in scores:
            told["prompt_logprobs"] = _prompt_logprobs(call.prompt_ids, scores[call.prompt_ids])
        choices.append(
            {
                "index": call.choice,
                "text": text,
                "logprobs": None if asked.logprobs is None else _logprobs(served, call, text_logprobs),
                "finish_reason": finish_of(call, Parsed(text)),
                **token_ids_of(call, asked.return_token_ids),
                **told,
            }
        )
    return {**_envelope("text_completion", served, prompts, calls, request_id), "choices": choices}


def _prompt_logprobs(ids: Sequence[int], scores: Sequence[float]) -> list[Body | None]:
    """In vLLM's form: at each place the log-prob of the token that stands there, and nothing at the first."""
    return [None, *({str(token): {"logprob": score}} for token, score in zip(ids[1:], scores, strict=True))]


def _logprobs(served: Served, call: Call, shape: Callable[..., Body]) -> Body:
    completion = call.completion
    return shape(served.engine.tokenizer, completion.token_ids.tolist(), completion.logprobs.tolist())


def _envelope(kind: str, served: Served, prompts: Sequence[Prompt], calls: Sequence[Call], request_id: str) -> Body:
    usage = usage_of([prompt.ids for prompt in prompts], calls)
    return {**envelope(kind, request_id, served.name, served.fingerprint), "usage": usage}
