"""A fingerprint tells tokenizers apart, and is the same in every process."""

from services.inference.fake import ByteTokenizer
from services.inference.tokenizers import fingerprint


class Words:
    def __init__(self, **ids: int) -> None:
        self._ids = ids

    def get_vocab(self) -> dict[str, int]:
        return self._ids


def test_the_fingerprint_is_known() -> None:
    assert fingerprint(Words(a=0, b=1)) == "4789c0d271fd2f2e"
    assert fingerprint(ByteTokenizer()) == "824cef53110aacb5"


def test_the_order_in_which_tokens_are_listed_does_not_matter() -> None:
    assert fingerprint(Words(b=1, a=0)) == fingerprint(Words(a=0, b=1))


def test_one_token_more_or_one_id_changed_is_another_tokenizer() -> None:
    prints = {fingerprint(words) for words in (Words(a=0, b=1), Words(a=1, b=0), Words(a=0, b=1, c=2), Words(ab=0))}
    assert len(prints) == 4
