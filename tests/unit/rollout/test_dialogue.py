"""Conversations of several turns: every token is the one that was sampled, or one that was said in between."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from schemas.weights import WeightVersion
from services.inference.engine import Completion, EngineLoad, Sampling
from services.inference.fake import ByteTokenizer
from services.rollout.dialogue import Dialogue
from services.rollout.errors import EpisodeInvalid
from services.rollout.policy import Policy, Prompting

END = 256
ASK = [{"role": "user", "content": "hi"}]


class EndingTokenizer(ByteTokenizer):
    """Bytes, and `<|end|>` as one token, which ends each message."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        parts = [list(part.encode("utf-8")) for part in text.split("<|end|>")]
        return [token for part in parts for token in (END, *part)][1:]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join("<|end|>" if token == END else chr(token) for token in token_ids)

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: object) -> object:
        text = "".join(f"{message['role']}>{message['content']}<|end|>" for message in conversation)
        return text + ("assistant>" if options.get("add_generation_prompt") else "")


class SpeakingEngine:
    """Says what it was given to say, each time under a newer version, and ends each reply by the end token or not."""

    def __init__(self, *replies: tuple[str, bool]) -> None:
        self.tokenizer = EndingTokenizer()
        self.weights: WeightVersion | None = None
        self.replies = list(replies)
        self.prompts: list[str] = []
        self.asked: list[Sampling] = []

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def load(self, directory: str, weights: WeightVersion) -> None:
        self.weights = weights

    def load_now(self) -> EngineLoad:
        return EngineLoad()

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return np.zeros(len(response_ids), np.float32)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        text, is_ended = self.replies.pop(0)
        self.prompts.append(self.tokenizer.decode(prompt_ids))
        self.asked.append(sampling)
        ids = [*text.encode(), *([END] if is_ended else [])]
        number = len(self.prompts)
        return Completion(
            token_ids=np.asarray(ids, np.int32),
            logprobs=np.full(len(ids), -0.5 * number, np.float32),
            token_versions=np.full(len(ids), number, np.int32),
            text=text,
            is_truncated=not is_ended,
        )


def spoken(*replies: tuple[str, bool], **prompting: int) -> tuple[SpeakingEngine, Dialogue]:
    engine = SpeakingEngine(*replies)
    policy = Policy(engine, Sampling(max_tokens=50, temperature=0.7), Prompting(**prompting))
    return engine, Dialogue.opened(policy, ASK)


async def test_replies_are_joined_by_what_the_template_puts_between_them() -> None:
    engine, dialogue = spoken(("one", True), ("two", True))
    assert await dialogue.reply() == "one"
    dialogue.say("and?")
    assert await dialogue.reply() == "two"
    experience = dialogue.experience(3, 0.5, {"won": 1.0})
    whole = "user>hi<|end|>assistant>one<|end|>user>and?<|end|>assistant>two<|end|>"
    assert engine.tokenizer.decode(experience.tokens.tolist()) == whole
    assert engine.prompts == [
        "user>hi<|end|>assistant>",
        "user>hi<|end|>assistant>one<|end|>user>and?<|end|>assistant>",
    ]
    assert experience.prompt_length == len(engine.tokenizer.encode(engine.prompts[0]))
    between = len(engine.tokenizer.encode("user>and?<|end|>assistant>"))
    assert experience.action_mask.tolist() == [1] * 4 + [0] * between + [1] * 4
    assert experience.logprobs.tolist() == [-0.5] * 4 + [0.0] * between + [-1.0] * 4
    assert experience.token_versions.tolist() == [1] * (4 + between) + [2] * 4
    assert (experience.position, experience.reward, experience.temperature) == (3, 0.5, 0.7)
    assert experience.metrics == {"won": 1.0}


async def test_a_reply_that_was_cut_off_is_ended_by_a_token_that_is_not_learned() -> None:
    engine, dialogue = spoken(("one", False), ("two", True))
    await dialogue.reply()
    dialogue.say("and?")
    await dialogue.reply()
    experience = dialogue.experience(0, 0.0)
    whole = "user>hi<|end|>assistant>one<|end|>user>and?<|end|>assistant>two<|end|>"
    assert engine.tokenizer.decode(experience.tokens.tolist()) == whole
    assert experience.action_mask[:4].tolist() == [1, 1, 1, 0]
    assert not experience.is_truncated


async def test_a_conversation_ends_where_the_model_has_no_more_room() -> None:
    first = len("user>hi") + 1 + len("assistant>")
    between = len("user>and?") + 1 + len("assistant>")
    engine, dialogue = spoken(("one", True), ("two", False), ("never", True), max_model_len=first + 4 + between + 3)
    await dialogue.reply()
    dialogue.say("and?")
    assert await dialogue.reply() == "two"
    assert engine.asked[1].max_tokens == 3
    dialogue.say("and?")
    assert await dialogue.reply() is None
    assert dialogue.is_full
    experience = dialogue.experience(0, 1.0)
    assert experience.is_truncated
    assert len(experience.tokens) == first + 4 + between + 3


async def test_each_turn_can_be_an_experience_of_its_own() -> None:
    engine, dialogue = spoken(("one", True), ("two", True))
    await dialogue.reply()
    dialogue.say("and?")
    await dialogue.reply()
    step = dialogue.step(1, 2, 0.25, state="there", step_reward=0.5)
    assert engine.tokenizer.decode(step.tokens[: step.prompt_length].tolist()) == engine.prompts[1]
    assert step.response_text == "two"
    assert (step.position, step.step, step.reward, step.state, step.step_reward) == (2, 1, 0.25, "there", 0.5)
    assert step.action_mask.tolist() == [1] * 4


async def test_a_prompt_that_was_cut_teaches_nothing(policy_of: Callable[..., Policy]) -> None:
    dialogue = Dialogue.opened(policy_of(max_prompt_tokens=3), ASK)
    assert await dialogue.reply() is None
    experience = dialogue.experience(0, 1.0)
    assert experience.reward == 0.0
    assert experience.action_mask.tolist() == [0]
    assert experience.metrics == {"prompt_truncated": 1.0}


async def test_a_second_reply_needs_something_to_answer() -> None:
    _, dialogue = spoken(("one", True))
    await dialogue.reply()
    with pytest.raises(EpisodeInvalid, match="nothing was said since the last reply"):
        await dialogue.reply()


async def test_a_template_that_forgets_earlier_replies_is_refused() -> None:
    engine, dialogue = spoken(("one", True))
    engine.tokenizer.apply_chat_template = lambda conversation, **options: conversation[-1]["content"]  # type: ignore[method-assign]
    await dialogue.reply()
    dialogue.say("and?")
    with pytest.raises(EpisodeInvalid, match="the chat template leaves out an earlier reply"):
        await dialogue.reply()
