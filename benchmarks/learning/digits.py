"""The plug-in of the learning benchmark: a reward that a model of random weights can climb in a minute."""

from services.rollout.rewards import Answer, Scores, register_reward


@register_reward("digits_reward")
def digits_reward(answer: Answer) -> Scores:
    """The share of the response's characters that are decimal digits, from 0 to 1."""
    said = answer.response
    return {"accuracy": sum(character in "0123456789" for character in said) / len(said) if said else 0.0}
