"""Experiences a second from publish to trainer-ready, beside a bare nats-py publisher and puller of the same bytes.

Groups of 8 experiences of 1,536 tokens, a file store, one publishing and one reading process, both at work at once.
Ours encodes, publishes by `Bus.publish_all`, reads by `Bus.read` and decodes and checks every group; the bare pair
moves bytes that were encoded before. The two take turns on the same server; the ratio is that of the medians.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import nats
import numpy as np
from nats.js import api
from roles import Role, machine, play, say, told

from bus.jetstream import connect
from bus.server import LocalServer
from bus.settings import GIB, BusSettings
from bus.subjects import SUBJECTS, Stream, stream_name
from bus.topology import stream_configs
from schemas.codec import encode
from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity

GROUP, TOKENS, PROMPT = 8, 1536, 256
SETTINGS = BusSettings(max_experience_bytes=8 * GIB)
DISTINCT = 32
IN_MEMORY, SQLITE = 4200, 850
"""Experiences a second of the original's queues on a machine of this size: in memory, and behind SQLite."""


def groups(run: str, count: int) -> list[GroupSampled]:
    """`count` groups with ordinals of their own; the arrays repeat."""
    random = np.random.default_rng(0)
    response = TOKENS - PROMPT

    def experience(position: int) -> Experience:
        return Experience(
            position=position,
            tokens=random.integers(0, 50_000, TOKENS, dtype=np.int32),
            prompt_length=PROMPT,
            action_mask=np.ones(response, np.uint8),
            logprobs=-random.random(response, dtype=np.float32),
            token_versions=np.full(response, 7, np.int32),
            reward=1.0,
            metrics={"accuracy": 1.0},
        )

    kinds = [tuple(experience(position) for position in range(GROUP)) for _ in range(DISTINCT)]
    return [
        GroupSampled(
            run=run,
            task=TaskIdentity(ordinal=ordinal, batch=ordinal // 8, taskset="train", epoch=0, index=ordinal),
            repeat_times=GROUP,
            explorer="explorer-0",
            experiences=kinds[ordinal % DISTINCT],
        )
        for ordinal in range(count)
    ]


async def our_publisher(url: str, run: str, count: int, window: int) -> None:
    messages = groups(run, count)
    bus = await connect(url, run, name="publisher", settings=SETTINGS)
    say(ready=True)
    await told()
    began, worked = time.monotonic(), time.process_time()
    stored = await bus.publish_all(messages, window=window)
    say(began=began, ended=time.monotonic(), worked_s=time.process_time() - worked)
    assert {each.sequence for each in stored} == set(range(1, count + 1))
    await bus.close()


async def our_reader(url: str, run: str, count: int) -> None:
    bus = await connect(url, run, name="reader", settings=SETTINGS)
    say(ready=True)
    await told()
    worked = time.process_time()
    heard = await _read(bus, count)
    ended, worked = time.monotonic(), time.process_time() - worked
    again = time.monotonic()
    assert await _read(bus, count) == heard
    say(ended=ended, worked_s=worked, again_s=time.monotonic() - again)
    assert heard == count * GROUP
    await bus.close()


async def _read(bus: Any, count: int) -> int:
    """Experiences in the first `count` groups of the stream."""
    experiences = 0
    async for delivery in bus.read(Stream.EXPERIENCES):
        assert isinstance(delivery.message, GroupSampled), delivery.error
        experiences += len(delivery.message.experiences)
        if delivery.sequence == count:
            return experiences
    raise AssertionError("a reader that follows has ended")


async def bare_publisher(url: str, run: str, count: int, window: int) -> None:
    subject = SUBJECTS[GroupSampled][1]
    encoded = [(subject(message), encode(message)) for message in groups(run, count)]
    client = await nats.connect(url, pending_size=16 << 20)
    jetstream = client.jetstream(timeout=30)
    numbers = iter(range(count))

    async def publish() -> None:
        for number in numbers:
            place, payload = encoded[number]
            await jetstream.publish(place, payload, headers={"Nats-Msg-Id": f"{run}:answer:{number}"})

    say(ready=True)
    await told()
    began, worked = time.monotonic(), time.process_time()
    await asyncio.gather(*(publish() for _ in range(window)))
    say(began=began, ended=time.monotonic(), worked_s=time.process_time() - worked)
    await client.close()


async def bare_puller(url: str, run: str, count: int) -> None:
    client = await nats.connect(url)
    say(ready=True)
    await told()
    worked = time.process_time()
    size = await _fetch(client, run, count)
    ended, worked = time.monotonic(), time.process_time() - worked
    again = time.monotonic()
    assert await _fetch(client, run, count) == size
    say(ended=ended, worked_s=worked, again_s=time.monotonic() - again)
    await client.close()


async def _fetch(client: Any, run: str, count: int) -> int:
    """Bytes of the first `count` messages of the stream."""
    jetstream, stream = client.jetstream(), stream_name(run, Stream.EXPERIENCES)
    name = f"bare-{os.urandom(4).hex()}"
    await jetstream.add_consumer(stream, api.ConsumerConfig(name=name, ack_policy=api.AckPolicy.NONE))
    subscription = await jetstream.pull_subscribe_bind(name, stream=stream)
    size = heard = 0
    while heard < count:
        try:
            fetched = await subscription.fetch(64, timeout=5)
        except nats.errors.TimeoutError:
            continue
        heard += len(fetched)
        size += sum(len(message.data) for message in fetched)
    await subscription.unsubscribe()
    return size


ROLES = {
    "our_publisher": our_publisher,
    "our_reader": our_reader,
    "bare_publisher": bare_publisher,
    "bare_puller": bare_puller,
}


async def measured(kind: str, url: str, run: str, count: int, window: int) -> dict[str, float]:
    """One round: seconds from the first publish to the last group in the reader's hands, and each process's work."""
    client = await nats.connect(url)
    (config,) = [each for each in stream_configs(run, SETTINGS) if each.name == stream_name(run, Stream.EXPERIENCES)]
    await client.jetstream().add_stream(config)
    names = ("our_publisher", "our_reader") if kind == "ours" else ("bare_publisher", "bare_puller")
    reader = await Role.begin(__file__, names[1], url=url, run=run, count=count)
    publisher = await Role.begin(__file__, names[0], url=url, run=run, count=count, window=window)
    reader.tell(go=True)
    publisher.tell(go=True)
    published, read = await asyncio.gather(publisher.result(), reader.result())
    size = (await client.jetstream().stream_info(config.name)).state.bytes
    await client.jetstream().delete_stream(config.name)
    await client.close()
    return {
        "path_s": read["ended"] - published["began"],
        "publish_s": published["ended"] - published["began"],
        "again_s": read["again_s"],
        "publisher_cpu_s": published["worked_s"],
        "reader_cpu_s": read["worked_s"],
        "bytes": size,
    }


async def compare(sync: str, store: Path, count: int, rounds: int, window: int) -> float:
    """Ours and bare in turns on one server; prints the medians and returns their ratio."""
    server = LocalServer(store / sync / "store", sync_interval=sync, max_file_bytes=16 * GIB)
    await server.start()
    results: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
    try:
        for number in range(rounds):
            for kind in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
                results[kind].append(await measured(kind, server.url, f"bench/{kind}-{number}", count, window))
    finally:
        await server.stop()
    return _report(sync, results, count)


def _report(sync: str, results: dict[str, list[dict[str, float]]], count: int) -> float:
    experiences = count * GROUP
    medians = {
        kind: {name: statistics.median(each[name] for each in each_round) for name in each_round[0]}
        for kind, each_round in results.items()
    }
    size = medians["ours"]["bytes"] / count
    print(f"\nsync_interval {sync}: {count} groups of {size / 1000:.0f} kB, medians of {len(results['ours'])} rounds")  # noqa: T201
    print(f"{'experiences/s':34}{'ours':>10}{'bare':>10}{'ratio':>8}")  # noqa: T201
    lines = (
        ("publish to trainer-ready", "path_s"),
        ("published (acknowledged)", "publish_s"),
        ("read again from the start", "again_s"),
    )
    ratios = {}
    for title, name in lines:
        ours, bare = experiences / medians["ours"][name], experiences / medians["bare"][name]
        ratios[name] = ours / bare
        print(f"{title:34}{ours:10.0f}{bare:10.0f}{ours / bare:8.2f}")  # noqa: T201
    for title, name in (
        ("publisher's CPU, ms a group", "publisher_cpu_s"),
        ("reader's CPU, ms a group", "reader_cpu_s"),
    ):
        ours, bare = 1000 * medians["ours"][name] / count, 1000 * medians["bare"][name] / count
        print(f"{title:34}{ours:10.3f}{bare:10.3f}")  # noqa: T201
    rate = experiences / medians["ours"]["path_s"]
    print(f"{rate / SQLITE:.1f} times the original behind SQLite ({SQLITE}/s), {rate / IN_MEMORY:.1f} times in memory")  # noqa: T201
    return ratios["path_s"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--groups", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=32, help="publishes in flight")
    parser.add_argument("--sync", default="always,2m", help="sync_interval of the server; several by commas")
    parser.add_argument("--dir", help="where the store lies (default: the directory for temporary files)")
    options = parser.parse_args()
    count, rounds = (100, 1) if options.quick else (options.groups, options.rounds)
    print(machine())  # noqa: T201
    with tempfile.TemporaryDirectory(dir=options.dir) as store:
        for sync in options.sync.split(","):
            await compare(sync, Path(store), count, rounds, options.window)


if __name__ == "__main__":
    import sys

    if "--role" in sys.argv:
        play(ROLES, sys.argv[sys.argv.index("--role") + 1])
    else:
        asyncio.run(main())
