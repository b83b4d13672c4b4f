"""What an answer's reward is compared with where the group does not tell: the reward of a greedy answer (ReMax)."""

from functools import partial

from schemas.experiences import BASELINE_METRIC, Experience
from schemas.tasks import TaskReleased
from services.rollout.policy import Policy
from services.rollout.runner import answer
from services.rollout.workflow import AnyWorkflow


async def answer_beside_greedy(
    task: TaskReleased, workflow: AnyWorkflow, policy: Policy, *, max_retry_times: int, max_timeout_s: float
) -> tuple[Experience, ...]:
    """`answer`, where each experience has the metric `reward_baseline`: the reward of the likeliest answer to the same
    task, which is not trained on itself. Source: ReMax (arXiv 2310.10505), section 3.

    Raises:
        TaskFailed, EngineDied: as `answer`.
    """
    answered = partial(answer, max_retry_times=max_retry_times, max_timeout_s=max_timeout_s)
    once = task.model_copy(update={"repeat_times": 1})
    greedy = await answered(once, workflow, policy.with_sampling(temperature=0.0))
    experiences = await answered(task, workflow, policy)
    baseline = {BASELINE_METRIC: greedy[-1].reward}
    return tuple(each.model_copy(update={"metrics": {**each.metrics, **baseline}}) for each in experiences)
