"""From rows to experience groups, as an explorer would have published them: with versions and log-probs of nobody."""

import numpy as np
import numpy.typing as npt

from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.config.rows import EXPERIENCES_OF_A_ROW, RowSchema
from services.config.tree import RunConfig
from services.inference.fake import ByteTokenizer
from services.inference.tokenizers import fingerprint
from services.rollout.config import ExperienceBufferConfig
from services.trainer.offline.errors import DataError, RowFault
from services.trainer.offline.rows import Rows
from services.trainer.offline.tokens import Manner, Tokenizer, Tokens, tokenized

TOO_LONG = "too_long"
EMPTY = "empty"
"""The rules by which rows are not trained on: longer than `model.max_model_len`; without a token to learn."""

TRUNCATED_METRIC = "truncated_tokens"
UNLEARNED_METRIC = "unlearned_turns"


class Formatter:
    """Makes groups of the rows of one buffer. Of cpt, a text that is too long is cut; others are not trained on."""

    def __init__(self, rows: Rows, tokenizer: Tokenizer, config: RunConfig, schema: RowSchema) -> None:
        layout, model = rows.layout, config.model
        self.rows = rows
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint(tokenizer)
        self._schema = schema
        self._run = config.run_name
        self._max_tokens = config.max_model_len
        self._manner = Manner(
            chat_template=layout.chat_template or model.custom_chat_template,
            enable_thinking=model.enable_thinking if layout.enable_thinking is None else layout.enable_thinking,
            learns_all_turns=layout.enable_concatenated_multi_turn,
        )

    @property
    def experiences_of_a_row(self) -> int:
        return EXPERIENCES_OF_A_ROW[self._schema]

    def group(self, task: TaskIdentity) -> GroupSampled:
        """The group of the row that `task` names.

        Raises:
            DataError: the row is not what the format says.
        """
        experiences = tuple(
            self._experience(position, tokens) for position, tokens in enumerate(self._tokens(task.index))
        )
        return GroupSampled(
            run=self._run,
            task=task,
            repeat_times=self.experiences_of_a_row,
            explorer=self.rows.name,
            experiences=experiences,
            tokenizer=self._fingerprint,
        )

    def rule(self, group: GroupSampled) -> str | None:
        """The rule by which a group is not trained on; None where it is."""
        if any(len(experience.tokens) > self._max_tokens for experience in group.experiences):
            return TOO_LONG
        return EMPTY if any(not experience.action_mask.any() for experience in group.experiences) else None

    def _tokens(self, index: int) -> list[Tokens]:
        try:
            return [tokenized(self._tokenizer, sample, self._manner) for sample in self.rows.samples(index)]
        except RowFault as error:
            raise DataError(self.rows.place, str(error), index) from error

    def _experience(self, position: int, tokens: Tokens) -> Experience:
        ids, mask, given = tokens.ids, tokens.action_mask, tokens.prompt_length
        metrics = {UNLEARNED_METRIC: float(tokens.unlearned_turns)} if tokens.unlearned_turns else {}
        surplus = len(ids) - self._max_tokens if self._schema == "cpt" else 0
        if surplus > 0:
            ids, mask = ids[: self._max_tokens], mask[: self._max_tokens - given]
            metrics[TRUNCATED_METRIC] = float(surplus)
        if len(mask) == 0:  # an experience has a response: a token that is not learned stands for none
            ids, mask, given = _with_an_end(ids), np.zeros(1, np.uint8), max(1, len(ids))
        return Experience(
            position=position,
            tokens=ids,
            prompt_length=given,
            action_mask=mask,
            logprobs=np.zeros(len(mask), np.float32),
            token_versions=np.zeros(len(mask), np.int32),
            reward=0.0,
            metrics=metrics,
            is_truncated=surplus > 0,
        )


def _with_an_end(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.concatenate([ids, np.zeros(2 if len(ids) == 0 else 1, np.int32)])


def formatter_of(config: RunConfig, name: str, buffer: ExperienceBufferConfig, schema: RowSchema) -> Formatter:
    """The formatter of a buffer's rows, with the tokenizer of the model, or one that `tokenizer_path` names.

    Raises:
        DataError: the rows cannot be read, or would be tokenized in another way than the model reads.
    """
    rows = Rows(name, buffer, schema)
    tokenizer = own = tokenizer_of(config, config.model.model_path)
    given = buffer.tokenizer_path or config.buffer.tokenizer_path
    if given and given != config.model.model_path:
        tokenizer = tokenizer_of(config, given)
        if fingerprint(tokenizer) != fingerprint(own):
            model = config.model.model_path
            raise DataError(
                rows.place, f"tokenizer_path={given} makes other token ids than {model} reads: leave it out"
            )
    return Formatter(rows, tokenizer, config, schema)


def tokenizer_of(config: RunConfig, path: str) -> Tokenizer:
    """The tokenizer in a model's directory; of the fake backend, the one of the fake engine."""
    if config.trainer.trainer_type == "fake":
        return ByteTokenizer()
    from transformers import AutoTokenizer

    trusted = config.trainer.trust_remote_code or config.model.trust_remote_code
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)
    return tokenizer
