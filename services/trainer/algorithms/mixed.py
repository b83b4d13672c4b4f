"""Losses over batches that mix usual rows with expert ones: PPO for the first, supervised learning for the second."""

import math

from services.config.algorithms.loss_arguments import MixChordLoss, MixedLoss, MixLoss, PpoLoss, SftLoss, SftPhiLoss
from services.trainer.algorithms.clipped import ppo
from services.trainer.algorithms.inputs import Inputs, Result
from services.trainer.algorithms.supervised import sft, sft_phi


def mix(inputs: Inputs, arguments: MixLoss) -> Result:
    """`(1 - mu) PPO of usual rows + mu SFT of expert rows`, each normalised over its own rows of the whole batch."""
    expert = _expert(inputs)
    found = sft(expert, SftLoss(loss_agg_mode=arguments.sft_loss_agg_mode or arguments.agg_mode))
    return _mixed(inputs, arguments, arguments.mu, found)


def mix_chord(inputs: Inputs, arguments: MixChordLoss) -> Result:
    """As `mix`, with a `mu` that follows the step, and SFT weighed by `p (1 - p)`. Source: arXiv 2508.11408."""
    mode = arguments.sft_loss_agg_mode or arguments.agg_mode
    expert = _expert(inputs)
    if arguments.enable_phi_function:
        found = sft_phi(expert, SftPhiLoss(loss_agg_mode=mode))
    else:
        found = sft(expert, SftLoss(loss_agg_mode=mode))
    mu = scheduled_mu(inputs.step, arguments)
    loss, metrics = _mixed(inputs, arguments, mu, found)
    return loss, metrics | {"mu": inputs.sequence_mean(inputs.logprob.new_full((len(inputs.logprob),), mu))}


def scheduled_mu(step: float | None, arguments: MixChordLoss) -> float:
    """`mu` at a step: a line from 0 to the peak, half a cosine to the valley, then the valley.

    Raises:
        ValueError: there is a schedule and no step.
    """
    warmup, decay = arguments.mu_warmup_steps, arguments.mu_decay_steps
    if warmup + decay == 0:
        return arguments.mu_valley
    if step is None:
        raise ValueError(f"mix_chord follows a schedule of {warmup + decay} steps: pass step, the trainer's step")
    if step < warmup:
        return step / warmup * arguments.mu_peak
    if step >= warmup + decay:
        return arguments.mu_valley
    fallen = 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay))
    return arguments.mu_valley + (arguments.mu_peak - arguments.mu_valley) * fallen


def _expert(inputs: Inputs) -> Inputs:
    return inputs.rows(inputs.expert_mask, inputs.totals.expert)


def _mixed(inputs: Inputs, arguments: MixedLoss, mu: float, expert: Result) -> Result:
    usual = ppo(inputs.rows(~inputs.expert_mask, inputs.totals.usual), _ppo_arguments(arguments))
    usual_weight, expert_weight = _weights(inputs, arguments)
    loss = (1 - mu) * usual_weight * usual[0] + mu * expert_weight * expert[0]
    metrics = {f"usual/{name}": value * usual_weight for name, value in usual[1].items()}
    metrics |= {f"expert/{name}": value * expert_weight for name, value in expert[1].items()}
    return loss, metrics | {"loss": loss}


def _ppo_arguments(arguments: MixedLoss) -> PpoLoss:
    return PpoLoss(
        clip_range=arguments.clip_range,
        clip_range_low=arguments.clip_range_low,
        clip_range_high=arguments.clip_range_high,
        loss_agg_mode=arguments.grpo_loss_agg_mode or arguments.agg_mode,
    )


def _weights(inputs: Inputs, arguments: MixedLoss) -> tuple[float, float]:
    """What the means over a call's own usual and expert rows are multiplied by.

    With totals they are shares already. Without, a mean counts as often as it has rows, per row of that kind in a
    whole batch, as Trinity-RFT does it: its sizes must then be those of the run.
    """
    if inputs.has_totals:
        return 1.0, 1.0
    rows = len(inputs.logprob)
    per_gpu = arguments.ppo_mini_batch_size // arguments.ngpus_trainer
    parts = arguments.ppo_mini_batch_size // arguments.ppo_micro_batch_size_per_gpu
    scale = per_gpu / rows if arguments.use_dynamic_bsz else float(parts)
    expert_rows = inputs.totals.expert_sequences
    usual_size = max(1, arguments.train_batch_size_usual // arguments.ngpus_trainer)
    expert_size = max(1, arguments.train_batch_size_expert // arguments.ngpus_trainer)
    return (rows - expert_rows) * scale / usual_size, expert_rows * scale / expert_size
