"""How fast a step was, by veRL's names and definitions: seconds, milliseconds a token, tokens a second and rank."""

from collections.abc import Mapping

TOKENS = "perf/total_num_tokens"
VERLS_NAMES = {
    "time/step": "step",
    "time/ref": "ref",
    "time/old_log_prob": "old_log_prob",
    "time/values": "values",
    "time/adv": "adv",
    "time/update_critic": "update_critic",
    "time/update_actor": "update_actor",
    "time/sync_weight": "update_weights",
    "time/save_checkpoint": "save_checkpoint",
}
"""The parts of a step that veRL's trainer has too; under `time/` they have Trinity-RFT's names."""
_PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


def performance(metrics: Mapping[str, float], ranks: int) -> dict[str, float]:
    """What follows from the seconds of a step that `ranks` processes made, and from its tokens, prompts included."""
    seconds = {name: metrics[ours] for ours, name in VERLS_NAMES.items() if ours in metrics}
    found = {f"timing_s/{name}": value for name, value in seconds.items()}
    tokens = metrics.get(TOKENS, 0.0)
    if tokens:
        found |= {
            f"timing_per_token_ms/{name}": 1000 * seconds[name] / tokens for name in _PER_TOKEN if name in seconds
        }
        found |= {
            "perf/time_per_step": seconds["step"],
            "perf/throughput": tokens / (seconds["step"] * ranks),
        }
    return found
