"""Advantages where the reference has none or a wrong value, and what every one of them must do, worked out by hand."""

import math

import pytest
import torch

from services.trainer.algorithms import Episodes, TokenInputs, advantage
from services.trainer.algorithms.advantages import EPISODES, GROUP, TOKENS
from services.trainer.algorithms.entropy_clipped import nec

NAN = math.nan


def _of(name: str, rewards: list[list[float]], **args: object) -> list[list[float]]:
    return advantage(name, **args)(torch.tensor(rewards, dtype=torch.float64)).tolist()


def test_grpo_centres_and_scales_within_the_group() -> None:
    found = _of("grpo", [[0.0, 0.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert found[0] == pytest.approx([-0.8660, -0.8660, 0.8660, 0.8660], abs=1e-4)
    assert found[1] == [0.0, 0.0, 0.0, 0.0]


def test_grpo_without_the_deviation_only_centres() -> None:
    assert _of("grpo", [[0.0, 1.0, 5.0]], std_normalize=False) == [[-2.0, -1.0, 3.0]]


@pytest.mark.parametrize("name", sorted(GROUP))
def test_an_answer_that_is_not_there_changes_nothing_for_the_others(name: str) -> None:
    """Groups of several sizes share one tensor, filled up with NaN."""
    whole = _of(name, [[0.5, -1.0, 2.0]])[0]
    found = _of(name, [[0.5, NAN, -1.0, 2.0], [1.0, NAN, NAN, NAN]])
    assert [found[0][place] for place in (0, 2, 3)] == pytest.approx(whole)
    if name != "none":
        assert all(math.isnan(value) for value in (found[0][1], *found[1][1:]))


@pytest.mark.parametrize("name", sorted(GROUP.keys() - {"none"}))
def test_an_answer_alone_keeps_its_reward(name: str) -> None:
    assert _of(name, [[0.5], [-2.0]]) == [pytest.approx([0.5], abs=1e-5), pytest.approx([-2.0], abs=1e-5)]


def test_rec_of_a_group_of_one_works_with_every_option() -> None:
    for args in ({}, {"std_normalize": True}, {"drop": "balance"}, {"std_normalize": True, "drop": "balance"}):
        assert _of("rec", [[0.5]], **args) == [pytest.approx([0.5], abs=1e-5)]


def test_rec_balances_by_dropping_surplus_answers_below_the_mean() -> None:
    """Four below the mean of .2, one above: three of the four are dropped, and the mean is that of the two kept."""
    assert _of("rec", [[0.0, 0.0, 1.0, 0.0, 0.0]], drop="balance") == [[-0.5, 0.0, 0.5, 0.0, 0.0]]
    assert _of("rec", [[1.0, 1.0, 1.0, 0.0]], drop="balance") == [[0.25, 0.25, 0.25, -0.75]]


def test_a_rank_penalty_lowers_the_reward_of_likely_answers_in_the_score_too() -> None:
    """With two right answers the less likely one has the larger advantage, and the advantages stay centred."""
    rewards, likely = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[-0.4, -0.3, -0.2, -0.1]])
    found = advantage("grpo", rank_penalty=0.25)(rewards, likely)[0]
    penalized = torch.tensor([0.0, 0.0, 1 - 0.25 * 2 / 4, 1 - 0.25 * 3 / 4])
    expected = (penalized - penalized.mean()) / (penalized.std() + 1e-6)
    torch.testing.assert_close(found, expected)
    assert float(found.sum()) == pytest.approx(0, abs=1e-6)
    assert found[2] > found[3]
    with pytest.raises(ValueError, match=r"rank_penalty=0.25 ranks answers .* pass mean_logprobs"):
        advantage("grpo", rank_penalty=0.25)(rewards)


def test_a_group_that_does_not_differ_enough_teaches_nothing() -> None:
    found = _of("grpo", [[0.0, 0.1], [0.0, 1.0]], std_threshold=0.1)
    assert found[0] == [0.0, 0.0]
    assert found[1] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-5)


def test_no_advantage_is_zero() -> None:
    assert _of("none", [[1.0, 2.0]]) == [[0.0, 0.0]]


def test_the_last_step_decides_in_whatever_order_the_rows_come() -> None:
    episodes = Episodes(
        rewards=torch.tensor([1.0, 0.0, 0.0, 0.5]),
        groups=torch.tensor([7, 7, 7, 7]),
        episodes=torch.tensor([0, 1, 0, 1]),
        steps=torch.tensor([1, 0, 0, 1]),
        states=["", "", "", ""],
        step_rewards=torch.full((4,), NAN),
    )
    found = advantage("step_wise_grpo")(episodes).tolist()
    share = 0.25 / math.sqrt(0.125)
    assert found == pytest.approx([share, -share, share, -share], abs=1e-4)


def test_gigpo_compares_a_step_with_others_from_the_same_state() -> None:
    """Two answers pass through state `a`: the one that ends well is ahead as an episode, and ahead at that step."""
    episodes = Episodes(
        rewards=torch.tensor([1.0, 1.0, 0.0, 0.0]),
        groups=torch.tensor([0, 0, 0, 0]),
        episodes=torch.tensor([0, 0, 1, 1]),
        steps=torch.tensor([0, 1, 0, 1]),
        states=["a", "b", "a", ""],
        step_rewards=torch.full((4,), NAN),
    )
    found = advantage("gigpo", gamma=0.5)(episodes).tolist()
    assert found == pytest.approx([0.5 + 0.25, 0.5, -0.5 - 0.25, -0.5], abs=1e-5)


def test_gae_with_a_critic_by_hand() -> None:
    inputs = TokenInputs(
        token_rewards=torch.tensor([[0.0, 0.0, 1.0]]),
        action_mask=torch.ones(1, 3),
        groups=torch.zeros(1),
        values=torch.tensor([[0.5, 0.6, 0.7]]),
    )
    found = advantage("ppo", gamma=0.5, lam=0.5)(inputs)
    last = 1 - 0.7
    middle = 0.5 * 0.7 - 0.6 + 0.25 * last
    first = 0.5 * 0.6 - 0.5 + 0.25 * middle
    assert found.returns[0].tolist() == pytest.approx([first + 0.5, middle + 0.6, last + 0.7])
    raw = torch.tensor([first, middle, last])
    torch.testing.assert_close(found.advantages[0], (raw - raw.mean()) / raw.std())


def test_clipv_leaves_out_far_tokens_without_positive_advantage() -> None:
    """Three tasks: of two answers each, right and wrong; then alone with reward 0, which gives advantage 0.

    Each row has one far token. A positive advantage keeps it; of the negative ones no more than one token in all is
    left out, the farthest; where the advantage is 0 nothing limits it.
    """
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])
    far = torch.tensor([9.0, 9.0, 9.0, 10.0, 9.0])
    inputs = TokenInputs(
        token_rewards=torch.nn.functional.pad(rewards.unsqueeze(-1), (3, 0)),
        action_mask=torch.ones(5, 4),
        groups=torch.tensor([0, 0, 1, 1, 2]),
        old_logprob=torch.zeros(5, 4),
        entropy=torch.zeros(5, 4),
        nec=torch.nn.functional.pad(far.unsqueeze(-1), (0, 3)),
    )
    found = advantage("clipv", mu=1.0)(inputs)
    assert found.action_mask.tolist() == [[1.0] * 4, [1.0] * 4, [1.0] * 4, [0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    assert found.metrics["frac_clipped"] == pytest.approx(2 / 20)
    assert (found.metrics["frac_clipped_pos"], found.metrics["frac_clipped_neg"]) == (0.0, pytest.approx(1 / 8))


def test_the_mean_over_the_vocabulary_is_the_same_in_chunks() -> None:
    """Against the formula, on logits of which one token cannot have some words at all."""
    logits = 3 * torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    logits[3, 10:] = -torch.inf
    p = logits.double().softmax(-1)
    surprise = torch.where(p > 0, p.log(), 0.0)
    entropy = -(p * surprise).sum(-1, keepdim=True)
    expected = (p * p * (entropy + surprise)).sum(-1)
    for chunk in (10**6, 100, 1):
        torch.testing.assert_close(nec(logits, chunk).double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(TOKENS))
def test_what_an_advantage_reads_and_lacks_is_named(name: str) -> None:
    needs = advantage(name).needs
    inputs = TokenInputs(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2))
    if not needs:
        assert advantage(name)(inputs).advantages.shape == (2, 3)
        return
    with pytest.raises(ValueError, match=r"the advantage reads \w+: pass it") as caught:
        advantage(name)(inputs)
    assert str(caught.value).split()[3].rstrip(":") in needs


def test_every_advantage_knows_its_shape() -> None:
    kinds = {"group": GROUP, "episodes": EPISODES, "tokens": TOKENS}
    assert {name: advantage(name).kind for table in kinds.values() for name in table} == {
        name: kind for kind, table in kinds.items() for name in table
    }
