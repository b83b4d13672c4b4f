"""DAPO's soft penalty of responses that come near the limit (arXiv 2503.14476, equation 13)."""


def overlong_penalty(
    response_length: int, penalty_factor: float | None, max_response_length: int | None, cache_length: int | None
) -> float:
    """0 up to `max_response_length - cache_length` tokens, then falling evenly to `-penalty_factor`, where it stays.

    Raises:
        ValueError: an argument is missing, or the penalty would begin before the first token.
    """
    if penalty_factor is None or max_response_length is None or cache_length is None:
        raise ValueError("an overlong penalty needs penalty_factor, max_response_length and cache_length")
    if not 0 < cache_length < max_response_length:
        raise ValueError(
            f"cache_length={cache_length} has to be above 0 and below max_response_length={max_response_length}"
        )
    over = response_length - (max_response_length - cache_length)
    return -penalty_factor * min(1.0, over / cache_length) if over > 0 else 0.0
