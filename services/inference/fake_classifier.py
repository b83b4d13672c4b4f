"""A reward model for tests: no model, and scores that are given, or follow from the text."""

import hashlib
from collections.abc import Mapping, Sequence

from services.inference.engine import EngineDied
from services.inference.fake import ByteTokenizer


class FakeClassifier:
    """`services.inference.reward_model.Classifier`. The score is that of the first key of `scores` which the text
    contains, else a hash of the text in [-3, 3)."""

    def __init__(self, *, scores: Mapping[str, float] | None = None, labels: int = 1) -> None:
        self._scores = dict(scores or {})
        self._labels = labels
        self._tokenizer = ByteTokenizer()
        self._is_stopped = False

    @property
    def tokenizer(self) -> ByteTokenizer:
        return self._tokenizer

    async def start(self) -> None:
        self._is_stopped = False

    async def stop(self) -> None:
        """Requests that come later fail."""
        self._is_stopped = True

    async def logits(self, token_ids: Sequence[int]) -> list[float]:
        if self._is_stopped:
            raise EngineDied("the fake classifier was stopped")
        text = self._tokenizer.decode(token_ids)
        given = next((score for part, score in self._scores.items() if part in text), None)
        return [_drawn(text) if given is None else given] * self._labels


def _drawn(text: str) -> float:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    return 6.0 * number / 2**32 - 3.0
