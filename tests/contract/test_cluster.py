"""Three nodes with replicated streams lose no acknowledged message when one of them dies, and store none twice."""

import asyncio
import dataclasses
import itertools
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from bus.cluster import LocalCluster
from bus.errors import BusRefused
from bus.jetstream import JetStreamBus, connect
from bus.port import LeaseTerms
from bus.server import free_port, server_binary
from bus.settings import KIB, MIB, BusSettings
from bus.subjects import Stream, bucket_names, stream_name

RUN = "project/name"
THREE = BusSettings(replicas=3, request_timeout_s=2.0, max_experience_bytes=512 * MIB, terms=LeaseTerms(lease_s=2.0))
PUBLISHERS = 8


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def bus(cluster: LocalCluster) -> AsyncIterator[JetStreamBus]:
    bus = await connect(cluster.url, RUN, name="member", settings=THREE)
    await bus.declare()
    yield bus
    await bus.close()


async def leader(bus: JetStreamBus, stream: str) -> str:
    return (await bus._connection.jetstream.stream_info(stream)).cluster.leader


async def in_step(bus: JetStreamBus, stream: str) -> bool:
    cluster = (await bus._connection.jetstream.stream_info(stream)).cluster
    return len(cluster.replicas or ()) == 2 and all(replica.current for replica in cluster.replicas)


async def test_every_stream_and_the_store_are_on_three_nodes(bus):
    for name in (*(stream_name(RUN, stream) for stream in Stream), *(f"KV_{bucket}" for bucket in bucket_names(RUN))):
        info = await bus._connection.jetstream.stream_info(name)
        assert (info.config.num_replicas, len(info.cluster.replicas)) == (3, 2), name


async def test_a_run_goes_from_one_replica_to_three(cluster, said, eventually):
    for number, replicas in enumerate((1, 3)):
        bus = await connect(cluster.url, RUN, name="member", settings=dataclasses.replace(THREE, replicas=replicas))
        await bus.declare()
        await bus.publish(said.group(number))
        await bus.put(f"key.{number}", said.held())
        if replicas == 1:
            await bus.close()
    await eventually(lambda: in_step(bus, stream_name(RUN, Stream.EXPERIENCES)), 30.0)
    assert [each.message.task.ordinal async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [0, 1]
    assert len(await bus.entries("key.")) == 2
    await bus.close()


@pytest.mark.chaos
@pytest.mark.slow
async def test_the_death_of_a_leader_under_load_loses_nothing_and_stores_nothing_twice(
    cluster, bus, said, eventually, record_property
):
    """Counts what was acknowledged, to eight publishers, against what is read after the dead node has come back."""
    stream = stream_name(RUN, Stream.EXPERIENCES)
    ordinals, acknowledged = itertools.count(), {}
    stopping = asyncio.Event()

    async def publish() -> None:
        while not stopping.is_set():
            ordinal = next(ordinals)
            stored = await bus.publish(said.group(ordinal, "x" * 16 * KIB))
            acknowledged[ordinal] = (stored.sequence, time.monotonic())

    publishing = [asyncio.create_task(publish()) for _ in range(PUBLISHERS)]
    await eventually(lambda: len(acknowledged) >= 500, 60.0)
    victim = cluster.node(await leader(bus, stream))
    killed_at, before = time.monotonic(), len(acknowledged)
    os.kill(victim.pid, signal.SIGKILL)
    await eventually(lambda: len(acknowledged) >= before + 500, 60.0)
    assert await leader(bus, stream) != victim.node.name
    await victim.start()
    await eventually(lambda: in_step(bus, stream), 60.0)
    stopping.set()
    await asyncio.gather(*publishing)

    times = sorted(at for _, at in acknowledged.values())
    gap_s = max(after - at for at, after in itertools.pairwise(times) if after > killed_at)
    record_property("gap_s", round(gap_s, 2))
    print(
        f"killed the leader at {before} of {len(acknowledged)} acknowledged groups: none acknowledged for {gap_s:.1f} s"
    )
    assert gap_s < 30.0
    read = [(each.message.task.ordinal, each.sequence) async for each in bus.read(Stream.EXPERIENCES, follow=False)]
    assert sorted(read) == sorted((ordinal, sequence) for ordinal, (sequence, _) in acknowledged.items())
    assert len({ordinal for ordinal, _ in read}) == len(read) == len(acknowledged)
    assert (await bus.state(Stream.EXPERIENCES)).messages == len(acknowledged)


@pytest.mark.chaos
@pytest.mark.slow
async def test_a_leader_and_its_tasks_outlive_the_node_that_served_them(cluster, bus, said, eventually):
    tasks = 40
    await bus.publish_all([said.task(ordinal) for ordinal in range(tasks)])
    lease = await bus.lease("synchronizer", "first", 60.0)
    await bus.put("release", said.held("progress"))
    queue, answered = await bus.queue(), []
    victim = None
    async with asyncio.timeout(90.0):
        while len(set(answered)) < tasks or (await bus.state(Stream.TASKS)).messages > 0:
            for delivery in await queue.pull(4, 2.0):
                await delivery.ack()
                answered.append(delivery.message.task.ordinal)
            if victim is None and len(answered) >= 8:
                victim = cluster.node(await leader(bus, stream_name(RUN, Stream.TASKS)))
                os.kill(victim.pid, signal.SIGKILL)
    assert sorted(set(answered)) == list(range(tasks))
    assert (await bus.get("release")).message == said.held("progress")
    assert lease.is_held
    await lease.release()


async def test_replicas_without_a_cluster_are_a_clear_refusal(server):
    bus = await connect(server.url, RUN, name="m", settings=dataclasses.replace(THREE, replicas=3))
    with pytest.raises(BusRefused, match=r"cannot have 3 replicas here .* set bus\.replicas to 1"):
        await bus.declare()
    await bus.close()


async def test_any_node_serves_who_knows_but_one(cluster, bus, said):
    await bus.publish(said.group(0))
    for node in cluster.nodes:
        client = await nats.connect(node.url, allow_reconnect=False)
        stored = await client.jetstream(timeout=5.0).get_msg(stream_name(RUN, Stream.EXPERIENCES), seq=1)
        assert stored.headers["trinity-task"] == "train/0/0"
        await client.close()


async def test_the_configuration_of_docker_makes_one_cluster_of_three(tmp_path, eventually):
    """As three containers would start it, but for what three processes on one host cannot share."""
    text = (Path(__file__).parents[2] / "docker" / "nats-cluster.conf").read_text()
    hosts = {name: free_port("127.0.0.1") for name in ("nats", "nats-2", "nats-3")}
    for host, port in hosts.items():
        text = text.replace(f"nats://{host}:6222", f"nats://127.0.0.1:{port}")
    servers, urls = [], []
    for host, port in hosts.items():
        urls.append(f"nats://127.0.0.1:{free_port('127.0.0.1')}")
        own = text.replace("port: 4222", f"port: {urls[-1].rpartition(':')[2]}").replace("/data", str(tmp_path / host))
        file = tmp_path / f"{host}.conf"
        file.write_text(own.replace("0.0.0.0:6222", f"127.0.0.1:{port}"))
        environment = {**os.environ, "TRINITY_NODE": host}
        servers.append(subprocess.Popen([server_binary(), "-c", str(file), "-l", f"{file}.log"], env=environment))
    try:
        bus = await connect(",".join(urls), RUN, name="member", settings=THREE)
        await bus.declare()
        await eventually(lambda: in_step(bus, stream_name(RUN, Stream.EXPERIENCES)), 30.0)
        assert bus._connection.client.max_payload == THREE.max_payload_bytes
        await bus.close()
    finally:
        for server in servers:
            server.kill()
            server.wait()
