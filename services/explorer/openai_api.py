"""An explorer's engine for everybody: `explorer.rollout_model.enable_openai_api`."""

import contextlib
from collections.abc import AsyncIterator

import structlog

from services.explorer.numbering import engine_name, engine_number
from services.inference.engine import Engine
from services.rollout.recording import shared
from services.rollout.served import policy_served
from services.runtime.context import Context
from services.runtime.durable import write_file

log = structlog.get_logger()

NO_WEIGHTS = "no weights have been announced yet: start the trainer (mode: train), or wait for it"


@contextlib.asynccontextmanager
async def offered(context: Context, engine: Engine) -> AsyncIterator[None]:
    """The engine behind an OpenAI-compatible address while the block lasts, where the configuration asks for it.

    Requests sample as they ask. The sessions of agents (`policy.recording()`) are opened on the same address.
    """
    model = context.config.rollout_model
    if not model.enable_openai_api:
        yield
        return
    from services.inference.openai.endpoint import Endpoint
    from services.inference.openai.server import WebServer

    name, number = engine_name(context.config, context.member.name), engine_number(context.config, context.member.name)
    served = policy_served(context.config, engine)
    served.obstacle = lambda: None if engine.weights else NO_WEIGHTS
    endpoint = Endpoint(model.api_key, served)
    port = 0 if model.base_port is None else model.base_port + number
    key = "explorer.rollout_model.base_port"
    server = WebServer(endpoint.app, context.config.explorer.listen_address, port, key=key)
    await server.start()
    address = context.config.run_dir / f"{name}_openai_url.txt"
    write_file(address, f"{server.url}/v1\n")
    log.info("openai_api_offered", url=f"{server.url}/v1", file=str(address))
    try:
        async with shared(engine, endpoint, server):
            yield
    finally:
        address.unlink(missing_ok=True)
        await server.stop()
