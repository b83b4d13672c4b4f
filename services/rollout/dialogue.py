"""A conversation of several turns whose token ids are those that were sampled, with what was said between them.

What the policy sampled is never tokenized again: the prompt of a later turn is the tokens so far, followed by those of
the messages in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.experiences import Experience
from services.inference.chat_layout import Messages
from services.inference.engine import Sampling
from services.rollout.errors import EmptyResponse, EpisodeInvalid
from services.rollout.policy import Policy, Sampled
from services.rollout.recording import experience_of

_MARK = "PLACEOFTHEREPLY"


@dataclass
class Dialogue:
    """The policy's side of one conversation. Ask by `reply`, go on by `say`."""

    policy: Policy
    messages: list[dict[str, str]]
    options: Mapping[str, Any] = field(default_factory=dict)
    turns: list[Sampled] = field(default_factory=list)
    is_full: bool = False
    _said: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def opened(
        cls,
        policy: Policy,
        messages: Messages,
        *,
        chat_template: str | None = None,
        enable_thinking: bool | None = None,
    ) -> "Dialogue":
        """A conversation that begins with `messages`, the last of them not the assistant's."""
        options = {"chat_template": chat_template, "enable_thinking": enable_thinking}
        return cls(policy, [dict(message) for message in messages], options)

    async def reply(self) -> str | None:
        """What the policy says next; None where there is no room for another token, or no room was for the prompt.

        Errors as of `Policy.chat`.
        """
        if not self.turns:
            return await self._begin()
        if not self._said:
            raise EpisodeInvalid("nothing was said since the last reply")
        before, between = self._tokens_so_far(), self._between()
        room = self._room(len(before) + len(between))
        if room < 1:
            self.is_full = True
            return None
        prompt_ids = (*before, *between)
        completion = await self.policy.engine.sample(prompt_ids, self._limited(room))
        if len(completion.token_ids) == 0:
            raise EmptyResponse(f"no token was sampled in turn {len(self.turns) + 1}")
        self.messages += self._said
        self._said = []
        prompt = self.policy.engine.tokenizer.decode(prompt_ids)
        temperature = self.policy.sampling.temperature
        return self._heard(Sampled(prompt_ids, prompt, completion, temperature=temperature))

    def say(self, content: str, role: str = "user") -> None:
        """Something that the policy did not say, before its next reply."""
        self._said.append({"role": role, "content": content})

    def experience(self, position: int, reward: float, metrics: Mapping[str, float] | None = None) -> Experience:
        """The whole conversation as one experience: a prompt, and a response of which only the replies are actions.

        Of a truncated prompt it is a masked one with reward 0.
        """
        if not self.turns:
            raise EpisodeInvalid("the conversation has no reply")
        if self.is_prompt_truncated:
            return self.turns[0].experience(position, 0.0)
        whole = experience_of(self.turns, position, reward, metrics)
        return whole.model_copy(update={"is_truncated": self.is_truncated})

    @property
    def is_prompt_truncated(self) -> bool:
        """Whether the first prompt was cut at its beginning: then nothing is to be learned."""
        return bool(self.turns and self.turns[0].is_prompt_truncated)

    @property
    def is_truncated(self) -> bool:
        """Whether the last reply was cut off, or there was no room for another."""
        return self.is_full or bool(self.turns and self.turns[-1].completion.is_truncated)

    def step(
        self,
        number: int,
        position: int,
        reward: float,
        metrics: Mapping[str, float] | None = None,
        *,
        state: str = "",
        step_reward: float | None = None,
    ) -> Experience:
        """The `number`-th turn as an experience of its own, whose prompt is all that came before."""
        turn = self.turns[number]
        return turn.experience(position, reward, metrics, step=number, state=state, step_reward=step_reward)

    async def _begin(self) -> str | None:
        self.messages += self._said
        self._said = []
        sampled = await self.policy.chat(self.messages, **self.options)
        heard = self._heard(sampled)
        return None if self.is_prompt_truncated else heard

    def _heard(self, turn: Sampled) -> str:
        self.turns.append(turn)
        self.messages.append({"role": "assistant", "content": turn.text})
        return turn.text

    def _tokens_so_far(self) -> tuple[int, ...]:
        return self.turns[-1].ids

    def _between(self) -> list[int]:
        """The tokens from the end of the last reply to the begin of the next.

        They are what the chat template puts after a reply: it is laid out with a mark in the reply's place. The token
        that ends a turn is there already where the policy has sampled it.
        """
        marked = [*self.messages[:-1], {"role": "assistant", "content": _MARK}, *self._said]
        laid_out = self.policy.laid_out(marked, **self.options)
        _, found, after = laid_out.rpartition(_MARK)
        if not found:
            raise EpisodeInvalid("the chat template leaves out an earlier reply: it is no template for several turns")
        between = self.policy.engine.tokenizer.encode(after, add_special_tokens=False)
        last = int(self.turns[-1].completion.token_ids[-1])
        return between[1:] if between and between[0] == last and self._ends_turn(last) else between

    def _ends_turn(self, token: int) -> bool:
        """Whether a token is no text of the reply, but its end."""
        completion = self.turns[-1].completion
        if completion.is_truncated:
            return False
        shown = self.policy.engine.tokenizer.decode([token])
        return not completion.text.endswith(shown)

    def _room(self, tokens: int) -> int:
        limit = self.policy.prompting.max_model_len
        return self.policy.sampling.max_tokens if limit is None else limit - tokens

    def _limited(self, room: int) -> Sampling:
        sampling = self.policy.sampling
        most = min(sampling.max_tokens, room)
        return replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))
