"""What an algorithm asks of the trainer beside the policy: a reference policy, a critic, log-probs of its own."""

from dataclasses import dataclass

from services.config.tree import RunConfig
from services.trainer.algorithms.advantages import advantage
from services.trainer.algorithms.losses import policy_loss
from services.trainer.backends.port import Measure


@dataclass(frozen=True)
class Demands:
    """What has to be computed for each batch."""

    reference: bool
    critic: bool
    measures: tuple[Measure, ...]
    own_logprobs: bool
    is_sampled: bool
    keeps_sampled: bool
    kl_loss: bool
    kl_penalty: bool
    pairs: bool


def demands(config: RunConfig) -> Demands:
    """The demands of a resolved configuration.

    `own_logprobs`: the trainer's log-probs at the start of the batch, which take the place of the sampler's unless the
    policy loss wants both (`keeps_sampled`). `measures` come from the same forward pass. `is_sampled`: a sampler gave
    the log-probs that experiences bring, so that there is something to compare.
    """
    algorithm = config.algorithm
    loss = policy_loss(_named(algorithm.policy_loss_fn), **(algorithm.policy_loss_fn_args or {}))
    estimator = advantage(_named(algorithm.advantage_fn), **(algorithm.advantage_fn_args or {}))
    kl_loss = _counts(algorithm.kl_loss_fn, algorithm.kl_loss_fn_args)
    kl_penalty = _counts(algorithm.kl_penalty_fn, algorithm.kl_penalty_fn_args)
    return Demands(
        reference=kl_loss or kl_penalty or "ref_logprob" in loss.needs,
        critic="values" in estimator.needs,
        measures=_measures(estimator.needs, own_logprobs=not algorithm.bypass_old_logprobs),
        own_logprobs=not algorithm.bypass_old_logprobs,
        is_sampled=config.experience_source != "rows",
        keeps_sampled="proximal_logprob" in loss.needs,
        kl_loss=kl_loss,
        kl_penalty=kl_penalty,
        pairs=loss.is_paired,
    )


def _named(part: str | None) -> str:
    if part is None:
        raise ValueError("a part of the algorithm is left open: derive the configuration first")
    return part


def _counts(name: str | None, arguments: dict[str, object] | None) -> bool:
    """Whether a KL term has weight. One that adapts grows from what it has, so 0 stays 0."""
    return name not in (None, "none") and float(str((arguments or {}).get("kl_coef", 0.0))) > 0


def _measures(reads: frozenset[str], own_logprobs: bool) -> tuple[Measure, ...]:
    """An advantage of the policy's entropy reads its log-probs beside it: all of them of the same policy."""
    needed: tuple[Measure, ...] = ("entropy", "nec")
    asked = tuple(measure for measure in needed if measure in reads)
    return ("logprob", *asked) if asked or own_logprobs else ()
