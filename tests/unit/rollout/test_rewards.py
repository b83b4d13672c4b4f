"""Rewards give the scores of Trinity-RFT's rewards of the same names."""

import json

import pytest

from services.rollout.answers import concluded
from services.rollout.errors import UnknownName
from services.rollout.rewards import REWARDS, Answer, boxed, register_reward, reward_named, true_answer

THOUGHT = "<think>6 times 7</think>\n<answer>42</answer>"


@pytest.mark.parametrize(
    ("response", "truth", "scores"),
    [
        (THOUGHT, "42", {"accuracy": 1.0, "format_score": 0.1}),
        (THOUGHT, "She has 6*7.\n#### 42", {"accuracy": 1.0, "format_score": 0.1}),
        (THOUGHT, "43", {"accuracy": 0.0, "format_score": 0.1}),
        ("<answer>42</answer>", "42", {"accuracy": 1.0, "format_score": -0.1}),
        (THOUGHT + " and so on", "42", {"accuracy": 1.0, "format_score": -0.1}),
        ("<think>\n</think><answer>\n\\boxed{42}\n</answer>", "42", {"accuracy": 1.0, "format_score": 0.1}),
        ("no idea", "42", {"accuracy": 0.0, "format_score": -0.1}),
        ("", "42", {"accuracy": 0.0, "format_score": -0.1}),
    ],
)
def test_math_reward_scores_accuracy_and_format(response: str, truth: str, scores: dict[str, float]) -> None:
    assert REWARDS["math_reward"](Answer(response, truth)) == scores


@pytest.mark.parametrize(
    ("response", "truth", "options", "scores"),
    [
        (r"so \boxed{\frac{1}{2}}.", "0.5", {}, {"accuracy": 1.0, "format_score": 0.0}),
        (r"\boxed{1}, no, \boxed{2}", r"it is \boxed{2}", {}, {"accuracy": 1.0, "format_score": 0.0}),
        ("2", "2", {}, {"accuracy": 0.0, "format_score": 0.0}),
        (r"\boxed{2", "2", {}, {"accuracy": 0.0, "format_score": 0.0}),
        (r"\boxed{2}", "2", {"with_think": True}, {"accuracy": 1.0, "format_score": -0.1}),
        (
            r"<think>hm</think>\boxed{2}",
            "2",
            {"with_think": True, "format_score_coef": 0.5},
            {"accuracy": 1.0, "format_score": 0.0},
        ),
        (
            r"</think><think>\boxed{2}",
            "2",
            {"with_think": True, "format_score_coef": 0.5},
            {"accuracy": 1.0, "format_score": -0.5},
        ),
    ],
)
def test_math_boxed_reward(response: str, truth: str, options: dict[str, object], scores: dict[str, float]) -> None:
    assert REWARDS["math_boxed_reward"](Answer(response, truth), **options) == scores


@pytest.mark.parametrize(
    ("response", "reward", "accuracy"),
    [
        (" 55\n", 1.0, 1.0),
        ("55", 1.0, 1.0),
        ("12+3 is 55.", 0.5, 0.0),
        ("55 or 56", 0.0, 0.0),
        ("-55", 0.0, 0.0),
        ("055", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_exact_match_gives_half_for_the_right_last_integer(response: str, reward: float, accuracy: float) -> None:
    scores = REWARDS["exact_match_reward"](Answer(response, "55"))
    assert sum(scores.values()) == reward
    assert scores["accuracy"] == accuracy


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<think>\na\n</think>\n<answer>\nb\n</answer>", 0.1),
        ("<think>\na\n</think>\n<answer>\nb\n</answer>\n", 0.1),
        ("<think>a</think><answer>b</answer>", -0.1),
        ("x<think>\na\n</think>\n<answer>\nb\n</answer>", -0.1),
        ("<think>\na\n</think>\n<answer>\nb\n</answer>\nmore", -0.1),
    ],
)
def test_the_format_is_tags_on_lines_of_their_own(response: str, score: float) -> None:
    assert REWARDS["format_reward"](Answer(response, "")) == {"format_score": score}


def test_the_format_may_be_another() -> None:
    assert REWARDS["format_reward"](Answer("A: 4", ""), pattern="A: .*") == {"format_score": 0.1}


def test_a_box_without_braces_holds_the_next_word() -> None:
    assert boxed("so $\\boxed 42$.") == "42"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("so\n<answer>(1 + 2) * 8</answer>", 1.0),
        ("<answer>(1 + 2) * -8</answer>", 0.1),
        ("<answer>8 * 3</answer>", 0.1),
        ("<answer>8 ** (1 + 2)</answer>", 0.1),
        ("<answer>__import__('os') or 1, 2, 8</answer>", 0.1),
        ("<answer>8 / (1 - 2 + 1)</answer>", 0.1),
        ("24", 0.0),
    ],
)
def test_countdown_wants_every_number_once(response: str, score: float) -> None:
    truth = json.dumps({"target": 24, "numbers": [1, 2, 8]})
    assert REWARDS["countdown_reward"](Answer(response, truth)) == {"score": score}


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (r"so it is \boxed{\frac{1}{2}}", 1.0),
        (r"\boxed{0.4}", -1.0),
        (r"<think>\boxed{0.5}</think>I do not know", -1.0),
        ("<think>hm</think>1/2", 1.0),
        ("", -1.0),
    ],
)
def test_dapo_gives_one_or_takes_one(response: str, score: float) -> None:
    scores = REWARDS["math_dapo_reward"](Answer(response, "0.5"))
    assert scores == {"accuracy": score, "format_score": 0.0}


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (60, 0.0), (70, -0.125), (80, -0.25), (100, -0.5), (101, -0.5), (900, -0.5)]
)
def test_dapo_takes_points_off_for_the_last_tokens_before_the_limit(length: int, penalty: float) -> None:
    arguments = {
        "enable_overlong_penalty": True,
        "penalty_factor": 0.5,
        "max_response_length": 100,
        "cache_length": 40,
    }
    answer = Answer(r"\boxed{7}", "7", response_length=length)
    scores = REWARDS["math_dapo_reward"](answer, **arguments)
    assert scores == {"accuracy": 1.0, "format_score": penalty}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty_factor": 1.0}, "needs penalty_factor, max_response_length and cache_length"),
        (
            {"penalty_factor": 1.0, "max_response_length": 40, "cache_length": 40},
            "cache_length=40 has to be above 0 and below max_response_length=40",
        ),
    ],
)
def test_an_overlong_penalty_needs_its_lengths(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REWARDS["math_dapo_reward"](Answer("7", "7"), enable_overlong_penalty=True, **arguments)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (r"\boxed{1} and \boxed{2}. The answer is 3.", "2"),
        ("The answer is 3. No, the final answer is: $x+1$.", "x+1"),
        ("we have 1,234 and -5.5 left", "-5.5"),
        ("there is none", None),
    ],
)
def test_a_solution_in_prose_has_a_conclusion(response: str, said: str | None) -> None:
    assert concluded(response) == said


def test_reasoning_gym_scores_by_the_generator_of_the_row() -> None:
    row = {"question": "?", "answer": "13", "metadata": {"source_dataset": "simple_equations"}}
    assert REWARDS["reasoning_gym_reward"](Answer("<answer>13</answer>", "13", row=row)) == {"accuracy": 1.0}
    assert REWARDS["reasoning_gym_reward"](Answer("14", "13", row=row))["accuracy"] < 1.0


def test_the_answer_is_found_within_a_reference() -> None:
    assert true_answer("5+5=10\n#### 1,234") == "1234"
    assert true_answer(r"so $x = \boxed{\frac{1}{2}}$") == r"\frac{1}{2}"
    assert true_answer(" 7 ") == "7"
    assert boxed(r"\boxed{a{b}c} \boxed{d{e}") is None


def test_an_unknown_reward_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"unknown reward 'math_rewards': did you mean 'math_reward'"):
        reward_named("math_rewards")


def test_a_registered_reward_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rollout.rewards.REWARDS", {})
    add = register_reward("length")

    @add
    def length(answer: Answer) -> dict[str, float]:
        return {"length": float(len(answer.response))}

    assert reward_named("length")(Answer("abc", "")) == {"length": 3.0}
