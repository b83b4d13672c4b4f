"""From samples to token ids, with a mask of what is learned.

The text of a conversation is the chat template's, so that a model is taught exactly what it will read and say when it
samples. Of the last answer, the learned tokens are those after the prompt as an engine would be given it. Of all turns
of the assistant, they are those that the template marks with `{% generation %}`, or, where it marks none, what each
turn adds to the prompt before it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from jinja2.exceptions import TemplateError

from services.trainer.offline.errors import RowFault
from services.trainer.offline.samples import Conversation, Message, Sample, Text

_TEMPLATE_ERRORS = (TemplateError, KeyError, TypeError, ValueError)
"""What a template raises at a conversation that it was not written for."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Tokenizer(Protocol):
    """What is asked of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def get_vocab(self) -> dict[str, int]: ...
    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any: ...


@dataclass(frozen=True)
class Manner:
    """How conversations are laid out. What is None is left to the tokenizer; `learns_all_turns`: not the last alone."""

    chat_template: str | None = None
    enable_thinking: bool | None = None
    learns_all_turns: bool = False


@dataclass(frozen=True)
class Tokens:
    """`T` token ids, of which the first `prompt_length` (at least 1) are given; `action_mask` has one element for each
    of the others, 1 where it is learned. `unlearned_turns` of the assistant are there without being learned."""

    ids: npt.NDArray[np.int32]
    prompt_length: int
    action_mask: npt.NDArray[np.uint8]
    unlearned_turns: int = 0


def tokenized(tokenizer: Tokenizer, sample: Sample, manner: Manner) -> Tokens:
    """The tokens of a sample. Where nothing is left to learn, the mask is empty or 0 everywhere.

    Raises:
        RowFault: the chat template refuses the conversation, or lays it out in a way that cannot be told apart.
    """
    if isinstance(sample, Text):
        ids = tokenizer.encode(sample.text)
        return _masked(ids, range(len(ids)))
    if sample.answer_at == len(sample.messages):
        ids = _laid_out(tokenizer, sample, manner, len(sample.messages), False)
        return _masked(ids, range(len(ids)))
    if manner.learns_all_turns:
        return _all_turns(tokenizer, sample, manner)
    return _last_answer(tokenizer, sample, manner)


def _last_answer(tokenizer: Tokenizer, sample: Conversation, manner: Manner) -> Tokens:
    whole = _laid_out(tokenizer, sample, manner, len(sample.messages), False)
    given = _laid_out(tokenizer, sample, manner, sample.answer_at, True) if sample.answer_at else []
    shared = _shared(whole, given)
    if shared < len(given):
        _check_kept(tokenizer, sample, manner, whole)
    return _masked(whole, range(shared, len(whole)))


def _check_kept(tokenizer: Tokenizer, sample: Conversation, manner: Manner, whole: list[int]) -> None:
    """That the whole differs from the prompt only in how the answer is opened."""
    before = _laid_out(tokenizer, sample, manner, sample.answer_at, False)
    if _shared(whole, before) < len(before) - 1:  # the last token may grow together with what follows
        raise RowFault(
            "the chat template lays out the messages before the answer in another way once the answer is there, so "
            "the two cannot be told apart: give format.chat_template one that does not"
        )


def _all_turns(tokenizer: Tokenizer, sample: Conversation, manner: Manner) -> Tokens:
    turns = [place for place, message in enumerate(sample.messages) if message["role"] == "assistant"]
    if _GENERATION.search(_template(tokenizer, sample, manner)):
        ids, marks = _marked(tokenizer, sample, manner)
        return _masked(ids, [place for place, mark in enumerate(marks) if mark])
    whole = _laid_out(tokenizer, sample, manner, len(sample.messages), False)
    learned: list[int] = []
    unlearned = 0
    for turn in turns:
        span = _span(tokenizer, sample, manner, turn, whole)
        unlearned += span is None
        learned += span or ()
    if unlearned == len(turns):
        raise RowFault(
            "the chat template lays out each turn in another way once the next is there, so none can be told apart: "
            "give format.chat_template one that marks them with {% generation %}"
        )
    return _masked(whole, learned, unlearned)


def _span(tokenizer: Tokenizer, sample: Conversation, manner: Manner, turn: int, whole: list[int]) -> range | None:
    """Where the tokens of a turn lie in the whole; None where the template changes them later."""
    given = _laid_out(tokenizer, sample, manner, turn, True) if turn else []
    said = _laid_out(tokenizer, sample, manner, turn + 1, False)
    is_kept = _shared(whole, given) == len(given) and _shared(whole, said) == len(said)
    return range(len(given), len(said)) if is_kept else None


def _laid_out(
    tokenizer: Tokenizer, sample: Conversation, manner: Manner, end: int, add_generation_prompt: bool
) -> list[int]:
    """The tokens of the messages before place `end`."""
    text = _templated(tokenizer, sample, manner, end, tokenize=False, add_generation_prompt=add_generation_prompt)
    return list(tokenizer.encode(str(text), add_special_tokens=False))


def _marked(tokenizer: Tokenizer, sample: Conversation, manner: Manner) -> tuple[list[int], list[int]]:
    """The tokens of all messages, and 1 for each that the template marks as generated."""
    found = _templated(
        tokenizer, sample, manner, None, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return list(found["input_ids"]), list(found["assistant_masks"])


def _templated(tokenizer: Tokenizer, sample: Conversation, manner: Manner, end: int | None, **options: Any) -> Any:
    chosen = {
        "chat_template": manner.chat_template,
        "enable_thinking": manner.enable_thinking,
        "tools": list(sample.tools) or None,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    try:
        return tokenizer.apply_chat_template([dict(message) for message in sample.messages[:end]], **chosen, **options)
    except _TEMPLATE_ERRORS as error:
        raise RowFault(f"the chat template refuses it: {error}") from error


def _template(tokenizer: Tokenizer, sample: Conversation, manner: Manner) -> str:
    """The text of the chat template in force; empty where the tokenizer does not say."""
    if manner.chat_template is not None:
        return manner.chat_template
    ask = getattr(tokenizer, "get_chat_template", None)
    return str(ask(tools=list(sample.tools) or None)) if ask is not None else ""


def _masked(ids: list[int], learned: Iterable[int], unlearned_turns: int = 0) -> Tokens:
    """The first learned token begins the response; the very first of a text is always given."""
    mask = np.zeros(len(ids), np.uint8)
    mask[list(learned)] = 1
    mask[:1] = 0
    prompt_length = max(1, int(mask.argmax())) if mask.any() else len(ids)
    return Tokens(np.asarray(ids, np.int32), prompt_length, mask[prompt_length:], unlearned_turns)


def _shared(left: list[int], right: list[int]) -> int:
    """How many tokens the two begin with together."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))
