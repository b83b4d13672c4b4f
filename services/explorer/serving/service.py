"""The serving explorer: answers conversations of real users, and brings those that were judged to the trainer.

It follows announced weights while requests are in flight; none is dropped for that. Asked to leave, it takes no more
requests and finishes those that it has.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import structlog

from services.explorer.numbering import engine_name, engine_number
from services.explorer.offering import tasksets_of
from services.explorer.openai_api import NO_WEIGHTS
from services.explorer.serving.app import collect
from services.explorer.serving.filling import Filling
from services.explorer.serving.history import History
from services.explorer.weights import Adoption
from services.inference.engine import Engine, EngineDied
from services.inference.openai.calls import Call
from services.inference.openai.endpoint import Endpoint
from services.inference.openai.served import Served
from services.inference.openai.server import WebServer
from services.inference.tokenizers import fingerprint
from services.rollout.served import SERVED, policy_served
from services.runtime.context import Context
from services.runtime.durable import write_file

log = structlog.get_logger()

_LOOK_S = 0.2


class NotServable(RuntimeError):
    """This run explores tasksets; the message says what to do."""


class Serving:
    """One engine, its address, and the history of what it has said."""

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._config = context.config
        self._engine = engine

    async def run(self) -> None:
        """Serve until asked to leave.

        Raises:
            NotServable: the run explores tasksets.
            HistoryUnusable: the database cannot be used.
            PortTaken: nobody can listen at the address.
            EngineDied: the engine cannot answer any more.
        """
        await self._assert_servable()
        history = await asyncio.to_thread(History, self._history_url(), self._context.bus.run)
        with self._context.activities.doing("starting"):
            await self._engine.start()
        filling = Filling(self._context, history, fingerprint(self._engine.tokenizer))
        endpoint = Endpoint(self._config.rollout_model.api_key, self._served(history))
        collect(endpoint, history, self._config.repeat_times, filling.committed)
        helpers = [
            asyncio.create_task(Adoption(self._context, self._engine).run()),
            asyncio.create_task(filling.run()),
        ]
        try:
            async with self._listening(endpoint):
                await self._serve(endpoint, helpers)
                await self._leave(endpoint)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._engine.stop()
            history.close()

    async def _assert_servable(self) -> None:
        known = tasksets_of(await self._context.release())
        if known and SERVED not in known:
            raise NotServable(
                f"run {self._context.bus.run} explores {', '.join(sorted(known))}, and its pace must not wait for "
                "users: serve under another name"
            )

    def _history_url(self) -> str:
        default = self._config.run_dir / f"{self._config.explorer.name}_history.db"
        return self._config.explorer.db_url or f"sqlite:///{default}"

    def _served(self, history: History) -> Served:
        async def keep(calls: Sequence[Call]) -> None:
            await asyncio.to_thread(history.record, calls)

        served = policy_served(self._config, self._engine)
        served.keep, served.is_sampling_fixed = keep, True
        served.obstacle = lambda: None if self._engine.weights else NO_WEIGHTS
        return served

    @contextlib.asynccontextmanager
    async def _listening(self, endpoint: Endpoint) -> AsyncIterator[None]:
        """The address, in the file by which clients find it."""
        explorer, member = self._config.explorer, self._context.member.name
        port = explorer.proxy_port + engine_number(self._config, member) if explorer.proxy_port else 0
        server = WebServer(endpoint.app, explorer.listen_address, port, key="explorer.proxy_port")
        await server.start()
        address = self._config.run_dir / f"{engine_name(self._config, member)}_server_url.txt"
        write_file(address, server.url + "\n")
        log.info("serving", url=server.url, file=str(address))
        try:
            yield
        finally:
            address.unlink(missing_ok=True)
            await server.stop()

    async def _serve(self, endpoint: Endpoint, helpers: Sequence[asyncio.Task[None]]) -> None:
        while not self._context.stopping.is_set():
            for helper in helpers:
                if helper.done():
                    helper.result()
            if endpoint.died.is_set():
                raise EngineDied("the engine has died: see above")
            self._say_state(endpoint)
            await self._context.wait(_LOOK_S)

    async def _leave(self, endpoint: Endpoint) -> None:
        self._context.member.state = "leaving"
        endpoint.is_closing = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(endpoint.idle.wait(), self._config.explorer.leave_timeout)
        log.info("serving_ended", cut_off=endpoint.counts.in_flight)

    def _say_state(self, endpoint: Endpoint) -> None:
        member, load = self._context.member, self._engine.load_now()
        member.tasks_in_hand = endpoint.counts.in_flight
        member.detail = {"requests": float(load.requests), "tokens_sampled": float(load.tokens_sampled)}
        member.state = "serving" if self._engine.weights else "waiting for weights"
