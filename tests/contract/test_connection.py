"""The first connection fails fast with what to do; a later one comes back by itself, or is dead and says so."""

import asyncio
import dataclasses
import socket
from pathlib import Path

import nats.errors
import pytest
from nats.js import errors as js_errors
from structlog.testing import capture_logs

from bus.connection import Connection, without_password
from bus.errors import BusRefused, BusUnavailable, PublishTimeout
from bus.jetstream import connect
from bus.retrying import Failure, failure
from bus.server import LocalServer
from bus.subjects import Stream

RUN = "project/name"


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_trap_connecting_to_a_dead_port_fails_in_time_and_says_what_to_do(settings):
    """By default the client retries silently for two minutes; asked to reconnect for ever, for ever."""
    quick = dataclasses.replace(settings, connect_timeout_s=0.5)
    url = f"nats://user:secret@127.0.0.1:{unused_port()}"
    async with asyncio.timeout(3.0):
        with pytest.raises(BusUnavailable, match=r"start one with 'trinity bus', or set bus\.url") as raised:
            await connect(url, RUN, name="late", settings=quick)
    assert "secret" not in str(raised.value)


async def test_a_name_that_does_not_resolve_fails_in_time(settings):
    quick = dataclasses.replace(settings, connect_timeout_s=1.0)
    async with asyncio.timeout(5.0):
        with pytest.raises(BusUnavailable):
            await connect("nats://nowhere.invalid:4222", RUN, name="lost", settings=quick)


@pytest.fixture
async def guarded(tmp_path: Path):
    """A server that asks for a password."""
    server = GuardedServer(tmp_path / "store")
    await server.start()
    yield server
    await server.stop()


class GuardedServer(LocalServer):
    password = "right"
    permissions = ""

    def _config(self) -> str:
        user = f'{{user: "u", password: "{self.password}"{self.permissions}}}'
        return super()._config() + f"authorization {{ users: [{user}] }}\n"


async def test_a_wrong_password_is_refused_at_once(guarded, settings):
    async with asyncio.timeout(3.0):
        with pytest.raises(BusRefused, match=r"(?i)authorization"):
            await connect(guarded.url.replace("//", "//u:wrong@"), RUN, name="w", settings=settings)


async def test_trap_a_connection_that_the_server_ends_for_good_is_dead_and_says_so(guarded, settings, eventually):
    """When the password is changed the client closes for ever, though it was asked to reconnect for ever."""
    bus = await connect(guarded.url.replace("//", "//u:right@"), RUN, name="m", settings=settings)
    await bus.declare()
    guarded.config_path.write_text(guarded.config_path.read_text().replace('"right"', '"changed"'))
    guarded.reload()
    await eventually(lambda: not bus.is_connected)
    async with asyncio.timeout(10.0):
        with pytest.raises(BusUnavailable):
            await bus.get("k")
        with pytest.raises(BusUnavailable):
            await anext(bus.read(Stream.METRICS))
        with pytest.raises(BusUnavailable):
            await (await bus.queue()).pull(1, 5.0)
    await bus.close()


async def test_trap_a_denial_is_an_error_and_not_a_timeout(guarded, settings, said):
    """The server denies by a message on the side; the publish itself would only time out, again and again."""
    guarded.permissions = ', permissions: { publish: { deny: ["trinity.*.experiences.>"] } }'
    guarded.config_path.write_text(guarded._config())
    await guarded.stop()
    await guarded.start()
    bus = await connect(guarded.url.replace("//", "//u:right@"), RUN, name="m", settings=settings)
    await bus.declare()
    async with asyncio.timeout(10.0):
        with pytest.raises(BusRefused, match="permissions violation"):
            await bus.publish(said.group(0))
        await bus.publish(said.metrics())
    await bus.close()


async def test_trap_an_error_in_the_error_callback_does_not_end_the_read_loop(bus, said, monkeypatch):
    """Whatever escapes from the callback would leave a connection that looks alive and answers nothing."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("logging failed")

    connection: Connection = bus._connection
    with monkeypatch.context() as patched:
        patched.setattr("bus.connection.log.warning", fail, raising=False)
        patched.setattr("bus.connection.log.error", fail, raising=False)
        await connection.client._error_cb(RuntimeError("anything"))
        await connection.client._process_err('permissions violation for publish to "x"')
    await bus.publish(said.metrics())


async def test_a_publish_goes_on_when_the_server_was_away_and_says_so(bus, said, server, kill, eventually):
    with capture_logs() as logs:
        await kill(server)
        publishing = asyncio.create_task(bus.publish(said.group(0)))
        await eventually(lambda: not bus.is_connected)
        assert not publishing.done()
        await server.start()
        stored = await asyncio.wait_for(publishing, 10.0)
        await eventually(lambda: bus.is_connected)
    assert stored.sequence == 1
    events = [each["event"] for each in logs]
    assert events.index("bus_lost") < events.index("bus_back")


async def test_trap_publishing_while_the_server_is_away_does_not_fill_the_clients_buffer(bus, said, server, kill):
    """Publishes while reconnecting are buffered up to a limit, and sent later though they timed out."""
    await kill(server)
    tries = [bus.publish(said.group(ordinal, "b" * 1_000_000), deadline_s=0.4) for ordinal in range(40)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {PublishTimeout}
    await server.start()
    assert (await bus.state(Stream.EXPERIENCES)).messages == 0


async def test_a_closed_bus_is_unavailable(bus, said):
    await bus.close()
    assert not bus.is_connected
    with pytest.raises(BusUnavailable):
        await bus.publish(said.group(0))
    await bus.close()


def test_trap_a_full_stream_and_an_absent_jetstream_are_told_apart_by_code():
    full = js_errors.ServiceUnavailableError(code=503, err_code=10077)
    assert failure(full) is Failure.FULL
    assert failure(js_errors.ServiceUnavailableError(code=503, err_code=10023)) is Failure.FULL
    assert failure(js_errors.ServiceUnavailableError(code=503, err_code=10008)) is Failure.AWAY
    assert failure(js_errors.ServiceUnavailableError()) is Failure.AWAY
    assert failure(js_errors.APIError(code=429)) is Failure.AWAY
    assert failure(js_errors.BadRequestError(code=400, err_code=10071)) is Failure.CONFLICT
    assert failure(js_errors.BadRequestError(code=400, err_code=10054)) is Failure.REFUSED
    assert failure(nats.errors.TimeoutError()) is Failure.AWAY
    assert failure(nats.errors.OutboundBufferLimitError()) is Failure.AWAY
    assert failure(js_errors.NoStreamResponseError()) is Failure.AWAY
    assert failure(nats.errors.MaxPayloadError()) is Failure.REFUSED
    assert failure(nats.errors.ConnectionClosedError()) is Failure.CLOSED


def test_an_address_is_shown_without_its_password():
    assert without_password("nats://u:p@host:4222") == "nats://***@host:4222"
    assert without_password("nats://host:4222") == "nats://host:4222"
