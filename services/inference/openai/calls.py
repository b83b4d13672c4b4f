"""What was sampled for a request, to the token, and how the ids of a conversation go on exactly as they were."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.inference.engine import Completion, Tokenizer

_REMEMBERED = 256


@dataclass(frozen=True)
class Call:
    """One choice of one response: what the engine saw and sampled. `incarnation` is that of its weights at the end."""

    request_id: str
    choice: int
    prompt_ids: tuple[int, ...]
    prompt_text: str
    completion: Completion
    temperature: float = 1.0
    incarnation: int = 0
    at: float = field(default_factory=time.time)

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and response."""
        return (*self.prompt_ids, *self.completion.token_ids.tolist())


class Memory:
    """The last calls. A prompt that begins with the whole text of one of them begins with its very token ids.

    Text that was sampled is thus never tokenized a second time: the tokenizer may well cut it in another way.
    """

    def __init__(self, tokenizer: Tokenizer, most: int = _REMEMBERED) -> None:
        self._tokenizer = tokenizer
        self._held: deque[tuple[str, tuple[int, ...]]] = deque(maxlen=most)

    def remember(self, calls: Iterable[Call]) -> None:
        for call in calls:
            sampled = self._tokenizer.decode(call.completion.token_ids.tolist())
            self._held.append((call.prompt_text + sampled, call.ids))

    def encoded(self, prompt: str) -> tuple[int, ...]:
        """The token ids of a prompt whose special tokens are in its text."""
        best, ids = max(
            ((text, ids) for text, ids in self._held if prompt.startswith(text)),
            key=lambda held: len(held[0]),
            default=("", ()),
        )
        return (*ids, *self._tokenizer.encode(prompt[len(best) :], add_special_tokens=False))


def begins_with(ids: Sequence[int], start: Sequence[int]) -> bool:
    """Whether `ids` goes on where `start` ends."""
    return len(ids) > len(start) and tuple(ids[: len(start)]) == tuple(start)
