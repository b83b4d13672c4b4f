"""Pass rates are estimated as BOTS says, and rows near the wanted one are chosen."""

import numpy as np
import pytest

from services.rollout.difficulty import Difficulty, chosen, unknown
from services.rollout.selectors import DIFFICULTY

FEATURES = np.array([[0.1, 0.9], [0.2, 0.6], [0.0, 1.0], [0.5, 0.5], [0.9, 0.3]])


def estimator(features: np.ndarray | None = FEATURES, **arguments: object) -> Difficulty:
    return unknown(5, features, DIFFICULTY | arguments)


@pytest.mark.parametrize(
    ("adaptive_rho", "alphas", "betas", "rho", "expected"),
    [
        (
            False,
            [8.743998, 1.881777, 5.479998, 18.28, 4.861335],
            [9.256002, 18.678223, 12.520002, 2.28, 2.898665],
            0.2,
            [0.485778, 0.091526, 0.304444, 0.889105, 0.626461],
        ),
        (
            True,
            [8.071999, 1.881777, 4.839999, 18.28, 3.805335],
            [8.328001, 18.678223, 11.560001, 2.28, 2.354665],
            0.1,
            [0.492195, 0.091526, 0.295122, 0.889105, 0.617749],
        ),
    ],
)
def test_two_updates_give_the_reference_implementations_posteriors(adaptive_rho, alphas, betas, rho, expected) -> None:
    first = estimator(adaptive_rho=adaptive_rho).learned([0, 2], [0.5, 0.25])
    np.testing.assert_allclose(first.alphas, [9.0, 2.102222, 5.0, 2.6, 3.186667], atol=1e-6)
    assert first.capability == pytest.approx(0.361110, abs=1e-6)
    second = first.learned([3, 1], [1.0, 0.0])
    np.testing.assert_allclose(second.alphas, alphas, atol=1e-6)
    np.testing.assert_allclose(second.betas, betas, atol=1e-6)
    np.testing.assert_allclose(second.expected(), expected, atol=1e-6)
    assert (second.rho, second.capability) == (rho, pytest.approx(0.399999, abs=1e-6))


def test_without_features_what_was_not_tried_is_forgotten_and_nothing_is_guessed() -> None:
    tried = estimator(None).learned([1], [0.75])
    np.testing.assert_allclose(tried.alphas, [1, 13, 1, 1, 1])
    np.testing.assert_allclose(tried.betas, [1, 5, 1, 1, 1])
    later = tried.learned([0], [0.0])
    np.testing.assert_allclose(later.alphas, [1, 10.6, 1, 1, 1])
    np.testing.assert_allclose(later.betas, [17, 4.2, 1, 1, 1])
    assert later.capability is None


def test_nothing_tried_changes_nothing() -> None:
    start = estimator()
    assert start.learned([], []) is start


def test_a_draw_from_the_posterior_has_its_mean() -> None:
    tried = estimator(None).learned([0, 1], [1.0, 0.25])
    draws = np.mean([tried.expected(np.random.default_rng(seed)) for seed in range(4000)], axis=0)
    np.testing.assert_allclose(draws, tried.expected(), atol=0.01)


def test_at_no_temperature_the_rows_nearest_to_the_target_come_first_and_all_before_any_comes_again() -> None:
    rates = np.array([0.1, 0.54, 0.9, 0.5, 0.45])
    chance = np.random.default_rng(0)
    assert chosen(rates, 3, 0.5, 0.0, chance).tolist() == [3, 1, 4]
    assert chosen(rates, 8, 0.5, 0.0, chance).tolist() == [3, 1, 4, 0, 2, 3, 1, 4]


def test_with_a_temperature_rows_are_drawn_by_softmax_without_replacement() -> None:
    rates, target, tau = np.array([0.0, 0.5, 1.0]), 1.0, 0.5
    weights = np.exp(-np.abs(target - rates) / tau)
    draws = [chosen(rates, 2, target, tau, np.random.default_rng(seed)) for seed in range(6000)]
    first = np.bincount([draw[0] for draw in draws], minlength=3) / len(draws)
    np.testing.assert_allclose(first, weights / weights.sum(), atol=0.02)
    assert all(draw[0] != draw[1] for draw in draws)
    second = np.bincount([draw[1] for draw in draws if draw[0] == 2], minlength=3)
    np.testing.assert_allclose(second[:2] / second.sum(), weights[:2] / weights[:2].sum(), atol=0.03)


def test_the_same_seed_chooses_the_same_rows() -> None:
    rates = np.linspace(0, 1, 50)
    one, two = (chosen(rates, 10, 0.5, 1.0, np.random.default_rng((42, 8))) for _ in range(2))
    assert one.tolist() == two.tolist()
