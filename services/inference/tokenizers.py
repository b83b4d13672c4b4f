"""Which tokenizer made token ids: tokenizers of one fingerprint give the same ids the same meaning."""

import hashlib
from collections.abc import Mapping
from typing import Protocol

_DIGITS = 16


class Vocabulary(Protocol):
    """What a Hugging Face tokenizer and the shipped fake have in common."""

    def get_vocab(self) -> Mapping[str, int]:
        """The id of every token, added ones included."""


def fingerprint(tokenizer: Vocabulary) -> str:
    """The first 16 hexadecimal digits of the SHA-256 over every id and its token, by id: the same in every process."""
    hasher = hashlib.sha256()
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0])):
        encoded = token.encode("utf-8", errors="surrogatepass")
        hasher.update(f"{number} {len(encoded)} ".encode() + encoded)
    return hasher.hexdigest()[:_DIGITS]
