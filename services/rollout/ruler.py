"""RULER: a judge compares all answers to a task with each other, and its scores are their rewards.

After OpenPipe's RULER (relative universal LLM-elicited rewards). `math_ruler_workflow` asks an auxiliary model;
`math_trainable_ruler_workflow` asks the policy itself, and trains it as a judge where the truth may be used.
"""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from typing import Literal

import structlog

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.rollout.answers import Scores
from services.rollout.policy import Policy, Sampled
from services.rollout.prompts import message, question_of
from services.rollout.single_turn import MathWorkflow

log = structlog.get_logger(__name__)

GROUND_TRUTH_SHARE = 0.2

_LIST = re.compile(r"\[[^\[\]]*\]")
_WORST, _BEST = -0.1, 1.1  # of math_reward


class MathRulerWorkflow(MathWorkflow):
    """The reward of an answer is its score beside the others, from 0 to 1, by an auxiliary model.

    The task's reward function (`math_reward`) is told in metrics alone, as `gold_reward`. `workflow_args`: `judge`, the
    name of the auxiliary model, by default the first; `judge_max_tokens`. Where the scores cannot be read, all are 0.
    """

    needs_auxiliary_model = True

    async def group_episodes(self, task: TaskReleased, policy: Policy, repeat_times: int) -> Sequence[Experience]:
        answers = await self.answers(task, policy, repeat_times)
        gold = await self.gold(task, answers)
        verdict = await policy.auxiliary_named(task.workflow_args.get("judge")).chat(
            comparison(question_of(task), [answer.text for answer in answers]),
            max_tokens=task.workflow_args.get("judge_max_tokens"),
        )
        scores = scores_in(verdict, repeat_times)
        if scores is None:
            log.warning("verdict_not_read", task=task.task.task_id, verdict=verdict[-200:])
        rewards = scores or [0.0] * repeat_times
        return scored(answers, rewards, gold, scores is not None)

    async def answers(self, task: TaskReleased, policy: Policy, repeat_times: int) -> list[Sampled]:
        """The policy's answers, by position."""
        return await asyncio.gather(*(self.asked(task, policy.at(position)) for position in range(repeat_times)))

    async def gold(self, task: TaskReleased, answers: Sequence[Sampled]) -> list[Scores]:
        """What the task's reward function says of each answer."""
        return await asyncio.gather(*(asyncio.to_thread(self.scored, task, answer) for answer in answers))


class MathTrainableRulerWorkflow(MathRulerWorkflow):
    """The policy judges its own answers, and is trained as a judge.

    Most tasks have the scores of one judgement as rewards. A task in five (`workflow_args.ground_truth_share`) may use
    the truth: every second of these trains the answers with the task's own rewards, and every other trains as many
    judgements of the answers, each with 1 less its mean error. So all experiences of a group answer the same question.
    Which task is which is the same at every try.
    """

    needs_auxiliary_model = False

    async def group_episodes(self, task: TaskReleased, policy: Policy, repeat_times: int) -> Sequence[Experience]:
        answers = await self.answers(task, policy, repeat_times)
        gold = await self.gold(task, answers)
        kind = self.kind(task)
        if kind == "answers":
            return scored(answers, [sum(said.values()) for said in gold], gold)
        questions = comparison(question_of(task), [answer.text for answer in answers])
        if kind == "judgements":
            judgements = await asyncio.gather(*(policy.at(place).chat(questions) for place in range(repeat_times)))
            return [_judgement(judgement, place, gold) for place, judgement in enumerate(judgements)]
        scores = scores_in((await policy.chat(questions)).text, repeat_times)
        return scored(answers, scores or [0.0] * repeat_times, gold, scores is not None)

    def kind(self, task: TaskReleased) -> Literal["answers", "judgements", "ruler"]:
        """What a task trains, and by what."""
        share = float(task.workflow_args.get("ground_truth_share", GROUND_TRUTH_SHARE))
        drawn = random.Random(f"{task.run} {task.task.task_id}").random()
        if drawn >= share:
            return "ruler"
        return "answers" if drawn < share / 2 else "judgements"


def comparison(question: str, answers: Sequence[str]) -> list[dict[str, str]]:
    """What the judge is asked about all answers."""
    number = len(answers)
    listed = "\n\n".join(f"Candidate solution {place}: {answer}" for place, answer in enumerate(answers, start=1))
    places = ", ".join(f"score of solution {place}" for place in range(1, number + 1))
    rule = (
        f"You are a fair judge. You are given a question and {number} candidate solutions. Compare the solutions, and "
        "give each a score from 0 to 1 that says how well it resolves the question."
    )
    asked = (
        f"Question: {question}\n\nA solution has to think first, between <think> and </think>, and then to answer, "
        f"between <answer> and </answer>.\n\n{listed}\n\nYou may reason step by step before you give the scores, but "
        f"be brief. End with a list of all {number} scores, in this form: [{places}]"
    )
    return [message("system", rule), message("user", asked)]


def scores_in(verdict: str, number: int) -> list[float] | None:
    """The last list in a verdict, each score held between 0 and 1; None where it is no list of `number` numbers."""
    found = _LIST.findall(verdict)
    try:
        scores = json.loads(found[-1]) if found else None
    except ValueError:
        return None
    if not isinstance(scores, list) or len(scores) != number:
        return None
    if not all(isinstance(score, int | float) and not isinstance(score, bool) for score in scores):
        return None
    return [min(1.0, max(0.0, float(score))) for score in scores]


def scored(
    answers: Sequence[Sampled], rewards: Sequence[float], gold: Sequence[Scores], is_read: bool | None = None
) -> list[Experience]:
    """The answers as experiences, by position. `is_read` tells whether the judge's scores could be, if it was asked."""
    judged = {} if is_read is None else {"judge_success": float(is_read)}
    return [
        answer.experience(position, reward, {**said, "gold_reward": sum(said.values()), **judged})
        for position, (answer, reward, said) in enumerate(zip(answers, rewards, gold, strict=True))
    ]


def _judgement(judgement: Sampled, position: int, gold: Sequence[Scores]) -> Experience:
    """A judgement as an experience: the nearer to the truth, put on the scale of scores, the better."""
    scores = scores_in(judgement.text, len(gold))
    reward = 0.0
    if scores is not None:
        truths = [(sum(said.values()) - _WORST) / (_BEST - _WORST) for said in gold]
        reward = 1.0 - sum(abs(score - truth) for score, truth in zip(scores, truths, strict=True)) / len(scores)
    metrics = {"judge_success": float(scores is not None), "reward_for_judge": reward}
    return judgement.experience(position, reward, metrics)
