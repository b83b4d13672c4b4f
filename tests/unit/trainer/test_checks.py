"""A well-formed group that this model cannot be trained on is told apart, by what the stream alone says."""

import numpy as np
import pytest

from services.trainer.backends.port import Vocabulary
from services.trainer.checks import Limits, fault

LIMITS = Limits(vocabulary=Vocabulary(size=5, tokenizer="ours"), max_tokens=5)


def _changed(group, **changes):
    """A group whose second experience differs."""
    found = group(0)
    first, second, *rest = found.experiences
    return found.model_copy(update={"experiences": (first, second.model_copy(update=changes), *rest)})


def test_a_group_within_the_limits_is_accepted(group, abandoned) -> None:
    assert fault(group(0), LIMITS, newest_version=4) is None
    assert fault(abandoned(0), LIMITS, newest_version=0) is None
    assert fault(None, LIMITS, newest_version=0) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.array([0, 1, 2, 3, 5], np.int32)}, "token id 5, where the vocabulary has 5"),
        ({"tokens": np.zeros(6, np.int32)}, "6 tokens, where the model has room for 5"),
        ({"token_versions": np.array([4, 4, 5], np.int32)}, "weight version 5, where none above 4 can exist yet"),
        ({"token_versions": np.array([4, -1, 4], np.int32)}, "weight version -1"),
        ({"logprobs": np.array([-1.0, 0.5, -1.0], np.float32)}, "a log-prob of 0.5: none is above 0"),
        ({"position": 4}, "position 4 of a group of 4"),
    ],
)
def test_what_is_wrong_is_named(group, changes, words) -> None:
    assert words in (fault(_changed(group, **changes), LIMITS, newest_version=4) or "")


def test_another_tokenizer_is_named_and_an_unknown_one_is_let_pass(group) -> None:
    theirs = group(0).model_copy(update={"tokenizer": "theirs"})
    assert fault(theirs, LIMITS, 4) == "it was made with tokenizer theirs, and the model has ours"
    assert fault(group(0), LIMITS, 4) is None


def test_a_replay_does_not_ask_for_versions(group) -> None:
    assert fault(group(0), Limits(checks_versions=False), newest_version=0) is None
