"""What must hold of `algorithm.rollout_correction`, by itself and beside the other parts of the algorithm."""

from collections.abc import Callable, Iterator

from services.config.algorithms.choice import REINFORCE, asks_for_reinforce, compares_with_own_logprobs, part_of
from services.config.algorithms.parts import POLICY_LOSSES
from services.config.errors import Problem
from services.config.rollout_correction import RATIOS, RolloutCorrection
from services.config.tree import RunConfig

SECTION = "algorithm.rollout_correction"
DEFAULT_WEIGHT_BOUND = RolloutCorrection.model_fields["rollout_is_threshold"].default


def _thresholds_are_possible(config: RunConfig) -> Iterator[Problem]:
    correction = config.algorithm.rollout_correction
    if correction is None:
        return
    readings: tuple[Callable[[RolloutCorrection], object], ...] = (lambda c: c.weight_bounds, lambda c: c.bounds)
    for read in readings:
        try:
            read(correction)
        except ValueError as error:
            key = str(error).partition("=")[0].partition(":")[0]
            yield Problem(f"{SECTION}.{key}", f"{SECTION}.{error}")


def _what_is_set_has_an_effect(config: RunConfig) -> Iterator[Problem]:
    correction = config.algorithm.rollout_correction
    if correction is None:
        return
    options = {part.strip() for part in (correction.rollout_rs or "").split(",")} - {""}
    if correction.rollout_is_batch_normalize and correction.rollout_is is None:
        yield _problem("rollout_is_batch_normalize", "=true has no weights to divide: set rollout_is")
    if correction.rollout_is is None and correction.rollout_is_threshold != DEFAULT_WEIGHT_BOUND:
        yield _problem("rollout_is_threshold", f"={correction.rollout_is_threshold} bounds nothing: set rollout_is")
    if correction.rollout_rs_threshold is not None and not options:
        yield _problem("rollout_rs_threshold", f"={correction.rollout_rs_threshold} bounds nothing: set rollout_rs")
    if correction.rollout_rs_threshold_lower is not None and not options & RATIOS.keys():
        told = f"={correction.rollout_rs_threshold_lower} is a bound of {', '.join(RATIOS)}"
        yield _problem("rollout_rs_threshold_lower", f'{told}: write both bounds in rollout_rs_threshold, as "0.5_2.0"')
    if correction.loss_type == REINFORCE and not correction.bypass_mode:
        yield _problem("loss_type", f"={REINFORCE} is a loss of bypass_mode: set it, or policy_loss_fn={REINFORCE}")
    if correction.rollout_is_batch_normalize and correction.bypass_mode:
        told = "=true needs the weights of the whole batch before the update, which bypass_mode does not compute"
        yield _problem("rollout_is_batch_normalize", f"{told}: set bypass_mode=false")


def _it_goes_with_the_loss(config: RunConfig) -> Iterator[Problem]:
    if config.algorithm.rollout_correction is None:
        return
    name = part_of(config, "policy_loss_fn")
    part = POLICY_LOSSES.get(name)
    if asks_for_reinforce(config) and name != REINFORCE:
        yield _problem("loss_type", f"={REINFORCE} and algorithm.policy_loss_fn={name} name two losses: keep one")
    if part is not None and "proximal_logprob" in part.reads:
        message = f"{SECTION} weighs tokens, and so does policy_loss_fn={name}: use ppo, or leave {SECTION} out"
        yield Problem(SECTION, message)
    if config.experience_source == "rows" or (part is not None and part.is_paired):
        yield Problem(
            SECTION, f"{SECTION} corrects for the sampler's log-probs, and rows of data have none: leave it out"
        )


def _weights_reach_the_loss(config: RunConfig) -> Iterator[Problem]:
    """In `bypass_mode` a clipped loss has the weights in its ratio to the sampler, which some losses have not."""
    correction, name = config.algorithm.rollout_correction, part_of(config, "policy_loss_fn")
    part = POLICY_LOSSES.get(name)
    if correction is None or correction.rollout_is is None or not correction.bypass_mode or part is None:
        return
    if correction.weights_count or "old_logprob" in part.reads or part.is_paired or config.experience_source == "rows":
        return
    advice = f"loss_type={REINFORCE}, or bypass_mode=false" if name == REINFORCE else "bypass_mode=false"
    told = f"={correction.rollout_is} has no effect with bypass_mode=true and policy_loss_fn={name}, which has no ratio"
    yield _problem("rollout_is", f"{told} to the sampler: set {advice}")


def _the_forward_pass_is_asked_for_once(config: RunConfig) -> Iterator[Problem]:
    correction = config.algorithm.rollout_correction
    if correction is None or correction.bypass_mode != compares_with_own_logprobs(config):
        return
    key, bypasses = "algorithm.bypass_old_logprobs", config.algorithm.bypass_old_logprobs
    told = f"{key}={str(bypasses).lower()} and {SECTION}.bypass_mode={str(correction.bypass_mode).lower()}"
    yield Problem(key, f"{told} contradict each other: leave {key} out")


def _problem(key: str, message: str) -> Problem:
    return Problem(f"{SECTION}.{key}", f"{SECTION}.{key}{message}")


ROLLOUT_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _thresholds_are_possible,
    _what_is_set_has_an_effect,
    _it_goes_with_the_loss,
    _weights_reach_the_loss,
    _the_forward_pass_is_asked_for_once,
)
