"""What a well-formed group must hold so that this model can be trained on it. Pure: the stream's order decides, never
the moment at which a group is read."""

from dataclasses import dataclass

from schemas.experiences import Experience, GroupSampled
from schemas.message import Message
from services.trainer.backends.port import Vocabulary

_LOGPROB_SLACK = 1e-3
"""Rounding in an engine's low precision may leave the log-prob of a certain token just above 0."""


@dataclass(frozen=True)
class Limits:
    """What the model can take. `max_tokens` is prompt and response together; None where nothing is known or asked."""

    vocabulary: Vocabulary | None = None
    max_tokens: int | None = None
    checks_versions: bool = True


def fault(message: Message | None, limits: Limits, newest_version: int) -> str | None:
    """Why a message cannot be trained on, in words; None where it can.

    `newest_version` is the highest weight version that the stream before this message can have made.
    """
    if not isinstance(message, GroupSampled):
        return None
    known = limits.vocabulary
    if known is not None and message.tokenizer and known.tokenizer and message.tokenizer != known.tokenizer:
        return f"it was made with tokenizer {message.tokenizer}, and the model has {known.tokenizer}"
    positions = {experience.position for experience in message.experiences}
    if max(positions) >= message.repeat_times:
        return f"position {max(positions)} of a group of {message.repeat_times}"
    for experience in message.experiences:
        found = _fault_of(experience, limits, newest_version)
        if found:
            return f"experience {experience.position}: {found}"
    return None


def _fault_of(experience: Experience, limits: Limits, newest_version: int) -> str | None:
    length, highest = len(experience.tokens), int(experience.tokens.max())
    if limits.max_tokens is not None and length > limits.max_tokens:
        return f"{length} tokens, where the model has room for {limits.max_tokens} (model.max_model_len)"
    if limits.vocabulary is not None and highest >= limits.vocabulary.size:
        return f"token id {highest}, where the vocabulary has {limits.vocabulary.size}: another tokenizer made it"
    lowest_version, version = int(experience.token_versions.min()), int(experience.token_versions.max())
    if lowest_version < 0:
        return f"weight version {lowest_version}"
    if limits.checks_versions and version > newest_version:
        return f"weight version {version}, where none above {newest_version} can exist yet"
    if float(experience.logprobs.max()) > _LOGPROB_SLACK:
        return f"a log-prob of {float(experience.logprobs.max()):.3g}: none is above 0"
    return None
