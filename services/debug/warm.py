"""Engines for trying workflows: kept warm by one process, found by the next through a file in the run's directory."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rich.console import Console

from services.config.tree import RunConfig
from services.inference.auxiliary import Auxiliaries, AuxiliaryModel, EngineModel
from services.inference.build import build_auxiliaries, build_engine, defaults_of
from services.inference.engine import Engine, EngineDied, Tokenizer
from services.inference.external import ExternalModel
from services.inference.openai.endpoint import Endpoint
from services.inference.openai.remote import RemoteEngine, lend
from services.inference.openai.served import Served
from services.inference.openai.server import LOOPBACK, WebServer
from services.rollout.policy import sampling_of
from services.rollout.served import policy_served
from services.runtime.durable import write_file

ADDRESS_FILE = "debug_engine.json"
_PORT_KEY = "explorer.rollout_model.base_port"


@dataclass(frozen=True)
class Warm:
    """Engines of a living process: where they are, and of which models."""

    url: str
    pid: int
    model_path: str
    auxiliary: tuple[str, ...] = ()


def address_file(config: RunConfig) -> Path:
    return config.run_dir / ADDRESS_FILE


def found(config: RunConfig) -> Warm | None:
    """The engines that another process keeps warm for this run. One that was killed has left a file, and none."""
    try:
        told = json.loads(address_file(config).read_text(encoding="utf-8"))
        warm = Warm(told["url"], int(told["pid"]), told["model_path"], tuple(told["auxiliary"]))
        os.kill(warm.pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return warm


async def keep_warm(config: RunConfig, console: Console) -> None:
    """Start the rollout engine and the auxiliary engines, and serve them until interrupted.

    Raises:
        PortTaken: `explorer.rollout_model.base_port` is another's.
        EngineDied: the engine has died.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    engine, auxiliary = build_engine(config, is_fixed=True), build_auxiliaries(config)
    console.print(f"starting {_model_name(config)} ...", highlight=False)
    await engine.start()
    await auxiliary.start()
    endpoint = _endpoint(config, engine, auxiliary)
    server = WebServer(endpoint.app, LOOPBACK, config.rollout_model.base_port or 0, key=_PORT_KEY)
    try:
        await server.start()
        own = [model.name for model in auxiliary.values() if isinstance(model, EngineModel)]
        told = {"url": server.url, "pid": os.getpid(), "model_path": _model_name(config), "auxiliary": own}
        config.run_dir.mkdir(parents=True, exist_ok=True)
        write_file(address_file(config), json.dumps(told) + "\n")
        _tell(config, console, server.url, own)
        await _until(stopping, endpoint)
    finally:
        address_file(config).unlink(missing_ok=True)
        await server.stop()
        await engine.stop()
        await auxiliary.stop()


@contextlib.asynccontextmanager
async def engines(config: RunConfig, console: Console) -> AsyncIterator[tuple[Engine, Auxiliaries]]:
    """The engines that are warm; with none, our own, for the time of the block."""
    warm = found(config)
    if warm is not None and warm.model_path != _model_name(config):
        said = f"the engine at {warm.url} has {warm.model_path}, not {_model_name(config)}: starting one of our own"
        console.print(said, highlight=False, soft_wrap=True)
        warm = None
    if warm is not None:
        console.print(f"using the engine at {warm.url}", highlight=False)
        engine, auxiliary = _lent(config, warm)
    else:
        hint = "`trinity debug --module inference_model` in another terminal keeps one warm"
        console.print(f"starting {_model_name(config)} ... ({hint})", highlight=False, soft_wrap=True)
        engine, auxiliary = build_engine(config, is_fixed=True), build_auxiliaries(config)
    try:
        await engine.start()
        await auxiliary.start()
        yield engine, auxiliary
    finally:
        await engine.stop()
        await auxiliary.stop()


def _lent(config: RunConfig, warm: Warm) -> tuple[Engine, Auxiliaries]:
    """The engines of another process; external models are asked from here."""
    own = build_auxiliaries(config)
    models: list[AuxiliaryModel] = []
    for model in config.auxiliary_models:
        name = model.known_as
        if name not in warm.auxiliary:
            models.append(own[name])
            continue
        url = f"{warm.url}/sessions/{name}/v1"
        key = config.rollout_model.api_key
        models.append(
            ExternalModel(name, model_name=name, base_url=url, api_key=key, defaults=defaults_of(model), retries=0)
        )
    engine = RemoteEngine(warm.url, lambda: _tokenizer(config), config.rollout_model.api_key)
    return engine, Auxiliaries(models)


def _tokenizer(config: RunConfig) -> Tokenizer:
    """The tokenizer of the rollout model, without the model."""
    if config.rollout_model.engine_type == "fake":
        from services.inference.fake import ByteTokenizer

        return ByteTokenizer()
    from transformers import AutoTokenizer

    path = config.rollout_model.model_path or config.model.model_path
    trusted = config.rollout_model.trust_remote_code or config.model.trust_remote_code
    return cast(Tokenizer, AutoTokenizer.from_pretrained(path, trust_remote_code=trusted))


def _endpoint(config: RunConfig, engine: Engine, auxiliary: Auxiliaries) -> Endpoint:
    endpoint = Endpoint(config.rollout_model.api_key, policy_served(config, engine))
    lend(endpoint, engine)
    for each in auxiliary.values():
        if isinstance(each, EngineModel):
            endpoint.open(_auxiliary_served(each), key=each.name)
    return endpoint


def _auxiliary_served(model: EngineModel) -> Served:
    defaults = model.defaults
    sampling = {
        "temperature": defaults.temperature,
        "top_p": defaults.top_p,
        "top_k": defaults.top_k,
        "max_tokens": defaults.max_tokens,
        "repetition_penalty": defaults.repetition_penalty,
    }
    return Served(
        model.name,
        model.engine,
        sampling_of(sampling),
        max_model_len=defaults.max_model_len,
        chat_template=defaults.chat_template,
        enable_thinking=defaults.enable_thinking,
    )


def _model_name(config: RunConfig) -> str:
    return config.rollout_model.model_path or config.model.model_path


def _tell(config: RunConfig, console: Console, url: str, auxiliary: list[str]) -> None:
    lines = [f"{_model_name(config)} is warm: OpenAI-compatible at {url}/v1"]
    lines += [f"{name} is warm: {url}/sessions/{name}/v1" for name in auxiliary]
    lines.append(f"`trinity debug --module workflow` finds it through {address_file(config)}; Ctrl-C ends it")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


async def _until(stopping: asyncio.Event, endpoint: Endpoint) -> None:
    waiting = [asyncio.create_task(stopping.wait()), asyncio.create_task(endpoint.died.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    if endpoint.died.is_set():
        raise EngineDied("the engine has died: see above")
