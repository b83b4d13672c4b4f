"""Workflows whose reward comes from an auxiliary model that reads the response: marks, or a rating by rubrics."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from schemas.experiences import Experience
from schemas.tasks import TaskReleased
from services.inference.auxiliary import AuxiliaryModel, Defaults
from services.inference.config import ExternalModelConfig
from services.rollout.errors import EpisodeInvalid
from services.rollout.policy import Policy, Sampled
from services.rollout.prompts import THINK_PROMPT, message, question_of, truth_of
from services.rollout.single_turn import SimpleWorkflow

log = structlog.get_logger(__name__)

RUBRIC_SYSTEM_PROMPT = """\
You rate answers. You are given a prompt, a response to it, and rubrics that say what a good response has. Rate the \
response as a whole from 1 (it meets none of the rubrics) to 10 (it meets all of them); a rubric of greater weight \
counts more. Begin with JSON in a code block, with the one key "rating", whose value is a whole number from 1 to 10:
```json
{"rating": 7}
```"""
REWARD_SYSTEM_PROMPT = """\
You mark solutions of mathematical problems. Read the solution, compare its result with the reference where one is \
given, and give marks from 0 (wrong from the start) to 10 (the right result, soundly derived). End with the marks in \
double brackets, such as [[7]]."""

_MARKS = re.compile(r"\[\[\s*(\d+(?:\.\d+)?)\s*\]\]")
_BLOCK = re.compile(r"```(?:json)?\s*(\{.*?\})\s*```", re.DOTALL)


class _Judged(SimpleWorkflow):
    """Ask the policy, then a judge about its response.

    `workflow_args`: `judge`, the name of the auxiliary model, by default the first; `judge_max_tokens`.
    """

    needs_auxiliary_model = True

    def judge(self, task: TaskReleased, policy: Policy) -> AuxiliaryModel:
        """The model that judges."""
        return policy.auxiliary_named(task.workflow_args.get("judge"))

    def questions(self, task: TaskReleased, sampled: Sampled) -> list[dict[str, str]]:
        """What the judge is asked about a response."""
        raise NotImplementedError

    def score(self, verdict: str) -> float | None:
        """What the judge's words mean, from 0 to 1; None where they mean nothing."""
        raise NotImplementedError

    async def episode(self, task: TaskReleased, policy: Policy, position: int) -> Experience:
        sampled = await self.asked(task, policy)
        if sampled.is_prompt_truncated:
            return sampled.experience(position, 0.0)
        verdict = await self.judge(task, policy).chat(
            self.questions(task, sampled), temperature=0.0, max_tokens=task.workflow_args.get("judge_max_tokens")
        )
        score = self.score(verdict)
        if score is None:
            log.warning("verdict_not_read", task=task.task.task_id, verdict=verdict[:200])
        metrics = {"judge_success": float(score is not None), "judge_score": score or 0.0}
        return sampled.experience(position, score or 0.0, metrics)


class MathRewardModelWorkflow(_Judged):
    """Mathematics marked by an auxiliary model, from 0 to 1. A response whose marks cannot be read has reward 0."""

    def system_prompt(self, task: TaskReleased) -> str | None:
        return THINK_PROMPT

    def questions(self, task: TaskReleased, sampled: Sampled) -> list[dict[str, str]]:
        truth = truth_of(task)
        reference = f"Reference:\n{truth}\n\n" if truth else ""
        asked = f"Problem:\n{question_of(task)}\n\n{reference}Solution:\n{sampled.text}\n\nYour marks:"
        return [message("system", REWARD_SYSTEM_PROMPT), message("user", asked)]

    def score(self, verdict: str) -> float | None:
        found = _MARKS.findall(verdict)
        marks = float(found[-1]) if found else None
        return marks / 10 if marks is not None and marks <= 10 else None


class RubricJudgeWorkflow(_Judged):
    """The response rated from 1 to 10 by an auxiliary model that is given rubrics; the reward is a tenth of it.

    A row holds under `rubric` a list of `{"description", "weight"}`. After RaR-implicit, arXiv 2507.17746.
    """

    def system_prompt(self, task: TaskReleased) -> str | None:
        return THINK_PROMPT.partition(" The reasoning process and")[0]

    def questions(self, task: TaskReleased, sampled: Sampled) -> list[dict[str, str]]:
        asked = (
            f"<prompt>\n{question_of(task)}\n</prompt>\n<response>\n{sampled.text}\n</response>\n"
            f"<rubrics>\n{_listed(task.row.get('rubric'))}\n</rubrics>\nYour rating:"
        )
        return [message("system", RUBRIC_SYSTEM_PROMPT), message("user", asked)]

    def score(self, verdict: str) -> float | None:
        for block in _BLOCK.findall(verdict):
            rating = _rating(block)
            if rating is not None:
                return rating / 10
        return None


class RubricJudgeExternalWorkflow(RubricJudgeWorkflow):
    """The same with a judge that `workflow_args` names: `judge_model_name`, and the environment variables
    `judge_api_base_url_env` (OPENAI_BASE_URL) and `judge_api_key_env` (OPENAI_API_KEY)."""

    needs_auxiliary_model = False
    _judges: dict[tuple[str, str, str], AuxiliaryModel] = {}  # one client a judge, for all tasks of this process

    def judge(self, task: TaskReleased, policy: Policy) -> AuxiliaryModel:
        from services.inference.external import ExternalModel

        arguments = task.workflow_args
        if not arguments.get("judge_model_name"):
            raise EpisodeInvalid(f"workflow {task.workflow!r} needs workflow_args.judge_model_name")
        key = (
            str(arguments["judge_model_name"]),
            str(arguments.get("judge_api_base_url_env", "OPENAI_BASE_URL")),
            str(arguments.get("judge_api_key_env", "OPENAI_API_KEY")),
        )
        if key not in self._judges:
            named = ExternalModelConfig(enable=True, model_name=key[0], base_url_env=key[1], api_key_env=key[2])
            self._judges[key] = ExternalModel.configured(named, Defaults())
        return self._judges[key]


def _listed(rubrics: Sequence[Mapping[str, Any]] | None) -> str:
    if not rubrics:
        return "None are given."
    return "\n".join(
        f"{number}. (weight {rubric.get('weight', 1)}) {rubric['description']}"
        for number, rubric in enumerate(rubrics, start=1)
    )


def _rating(block: str) -> float | None:
    try:
        rating = json.loads(block).get("rating")
    except ValueError:
        return None
    is_number = isinstance(rating, int | float) and not isinstance(rating, bool)
    return float(rating) if is_number and 1 <= rating <= 10 else None
