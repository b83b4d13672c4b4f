"""Advantages of a batch: the rows as each kind of advantage function takes them, and its answer back on the rows."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from services.trainer.algorithms.advantages import Advantage, EpisodeAdvantage, GroupAdvantage, TokenAdvantage
from services.trainer.algorithms.episode_advantages import Episodes
from services.trainer.algorithms.token_advantages import TokenInputs
from services.trainer.backends.port import Floats, Sequence
from services.trainer.padding import padded, unpadded

Estimated = tuple[list[Sequence], dict[str, float]]
PerToken = Mapping[str, Rows[Floats]]


def estimated(
    rows: Rows[Sequence], advantage: Advantage, token_rewards: Rows[Floats], more: PerToken | None = None
) -> Estimated:
    """The sequences with their advantages and, where the function gives them, returns and another action mask; and what
    the function measured.

    `token_rewards` have one element per response token, and so has what is in `more` by its name in `TokenInputs`.

    Raises:
        ValueError: the experiences lack what the function reads.
    """
    if isinstance(advantage, GroupAdvantage):
        return _by_group(rows, advantage, token_rewards), {}
    if isinstance(advantage, EpisodeAdvantage):
        return _by_episode(rows, advantage, token_rewards), {}
    return _by_token(rows, advantage, token_rewards, more or {})


def _by_group(rows: Rows[Sequence], advantage: GroupAdvantage, token_rewards: Rows[Floats]) -> list[Sequence]:
    """One number a response. Groups of different sizes stand in one tensor, filled up with NaN."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[row.group].append(place)
    size = max(len(members) for members in places.values())
    rewards_P_G = torch.full((len(places), size), torch.nan)
    logprobs_P_G = torch.full((len(places), size), torch.nan)
    for number, members in enumerate(places.values()):
        for column, place in enumerate(members):
            rewards_P_G[number, column] = float(token_rewards[place].sum())
            logprobs_P_G[number, column] = _mean_logprob(rows[place])
    values_P_G = advantage(rewards_P_G, logprobs_P_G)
    done = list(rows)
    for number, members in enumerate(places.values()):
        for column, place in enumerate(members):
            done[place] = _constant(rows[place], float(values_P_G[number, column]))
    return done


def _by_episode(rows: Rows[Sequence], advantage: EpisodeAdvantage, token_rewards: Rows[Floats]) -> list[Sequence]:
    """One number a step of an episode; an episode is what has the same group and position."""
    values_B = advantage(
        Episodes(
            rewards=torch.tensor([float(each.sum()) for each in token_rewards]),
            groups=torch.tensor([row.group for row in rows]),
            episodes=torch.tensor([row.position for row in rows]),
            steps=torch.tensor([row.step for row in rows]),
            states=[row.state for row in rows],
            step_rewards=torch.tensor([np.nan if row.step_reward is None else row.step_reward for row in rows]),
        )
    )
    return [_constant(row, float(value)) for row, value in zip(rows, values_B, strict=True)]


def _by_token(
    rows: Rows[Sequence], advantage: TokenAdvantage, token_rewards: Rows[Floats], more: PerToken
) -> Estimated:
    of_rows: dict[str, Callable[[], torch.Tensor]] = {
        "values": lambda: padded(_present(rows, "values", "a critic's values")),
        "old_logprob": lambda: padded([row.old_logprobs for row in rows]),
        "teacher_logprob": lambda: padded(_present(rows, "teacher_logprobs", "a teacher's log-probs")),
        "baselines": lambda: torch.tensor(_present(rows, "baseline", "a reward to compare with")),
    }
    found = advantage(
        TokenInputs(
            token_rewards=padded(token_rewards),
            action_mask=padded([row.action_mask for row in rows]),
            groups=torch.tensor([row.group for row in rows]),
            **{name: padded(more[name]) if name in more else of_rows[name]() for name in sorted(advantage.needs)},
        )
    )
    lengths = [row.response_length for row in rows]
    advantages, returns = unpadded(found.advantages, lengths), unpadded(found.returns, lengths)
    masks = [mask.astype(np.uint8) for mask in unpadded(found.action_mask, lengths)]
    done = [
        replace(row, advantages=advantages[place], returns=returns[place], action_mask=masks[place])
        for place, row in enumerate(rows)
    ]
    return done, found.metrics


def _constant(row: Sequence, value: float) -> Sequence:
    return replace(row, advantages=np.full(row.response_length, value, dtype=np.float32))


def _mean_logprob(row: Sequence) -> float:
    actions = row.old_logprobs[row.action_mask > 0]
    return float(actions.mean()) if len(actions) else 0.0


def _present(rows: Rows[Sequence], name: str, what: str) -> list[Any]:
    found = [getattr(row, name) for row in rows]
    lacking = sum(each is None for each in found)
    if lacking:
        raise ValueError(f"the advantage function reads {what}, and {lacking} of {len(rows)} experiences have none")
    return found
