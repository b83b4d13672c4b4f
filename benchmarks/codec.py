"""How long a group of 8 experiences of 1,024 tokens takes to encode and decode, beside plain msgpack of its bytes."""

import statistics
import time
from collections.abc import Callable

import msgpack
import numpy as np

from schemas.codec import decode, encode
from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity

GROUP, TOKENS, PROMPT, ROUNDS = 8, 1024, 256, 500


def group() -> GroupSampled:
    random = np.random.default_rng(0)
    response = TOKENS - PROMPT
    experiences = tuple(
        Experience(
            position=position,
            tokens=random.integers(0, 50_000, TOKENS, dtype=np.int32),
            prompt_length=PROMPT,
            action_mask=np.ones(response, np.uint8),
            logprobs=-random.random(response, dtype=np.float32),
            token_versions=np.full(response, 7, np.int32),
            reward=1.0,
            metrics={"accuracy": 1.0},
        )
        for position in range(GROUP)
    )
    task = TaskIdentity(ordinal=0, batch=0, taskset="train", epoch=0, index=0)
    return GroupSampled(run="project/name", task=task, repeat_times=GROUP, explorer="e", experiences=experiences)


def median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def main() -> None:
    message = group()
    payload = encode(message)
    plain = msgpack.unpackb(payload)
    ours = median_ms(lambda: decode(encode(message)))
    reference = median_ms(lambda: msgpack.unpackb(msgpack.packb(plain)))
    print(f"group of {GROUP} x {TOKENS} tokens: {len(payload)} bytes")  # noqa: T201
    print(f"encode + decode   {ours:.3f} ms (median of {ROUNDS})")  # noqa: T201
    print(f"plain msgpack     {reference:.3f} ms")  # noqa: T201
    print(f"ratio             {ours / reference:.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
