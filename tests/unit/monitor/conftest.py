"""Readers of what records hold, and a tracking server of our own."""

import gzip
import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.config.tree import RunConfig
from services.monitor.experiment import Experiment, experiment
from services.monitor.record import Entry

Curves = dict[tuple[str, str], list[tuple[int, float]]]
"""Of each run and name, the steps and values in the order of their recording."""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(tmp_path / "mlruns"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def told() -> Experiment:
    config = RunConfig.model_validate(
        {
            "project": "proofs",
            "group": "night",
            "name": "sums",
            "monitor": {"monitor_type": "wandb", "monitor_args": {"api_key": "k" * 40}},
            "buffer": {"explorer_output": {"storage_type": "sql", "path": "postgresql://me:hush@host/db"}},
        }
    )
    return experiment(config, None)


@pytest.fixture
def entries() -> list[Entry]:
    """What two services report in five messages: a step that is repeated, and one that comes late."""
    said = [
        ("trainer", 1, {"actor/loss": 0.5, "actor/lr": 1e-3}),
        ("explorer", 2, {"rollout/reward/mean": 0.25}),
        ("explorer", 1, {"rollout/reward/mean": 0.125}),
        ("evaluator", 0, {"eval/sums/reward/mean@4": 0.75}),
        ("trainer", 1, {"actor/loss": 0.375}),
    ]
    return [
        Entry(position << 16, service, step, 1_700_000_000.0 + position, values)  # type: ignore[arg-type]
        for position, (service, step, values) in enumerate(said, start=1)
    ]


def _wandb_records(path: Path) -> Iterator[Any]:
    """The messages of a file of wandb, which is a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, gathered = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        gathered += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(gathered)
            gathered = b""
            yield record


@pytest.fixture
def wandb_files() -> Callable[[Path], dict[str, list[Any]]]:
    """The messages in wandb's files below a directory, by the run's name."""

    def read(directory: Path) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
            records = list(_wandb_records(path))
            name = next(record.run.display_name for record in records if record.WhichOneof("record_type") == "run")
            found.setdefault(name, []).extend(records)
        return found

    return read


@pytest.fixture
def tensorboard_files() -> Callable[[Path], Curves]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(directory: Path) -> Curves:
        curves: Curves = {}
        for run in directory.iterdir():
            events = EventAccumulator(str(run)).Reload()
            for name in events.Tags()["scalars"]:
                curves[run.name, name] = [(event.step, event.value) for event in events.Scalars(name)]
        return curves

    return read


class WandbServer:
    """As much of the server of Weights & Biases as its client needs to write runs: it keeps their history."""

    def __init__(self, port: int = 0) -> None:
        self.histories: dict[str, list[str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def points(self, run: str) -> list[dict[str, Any]]:
        """The history of a run, without the client's clock."""
        rows = [json.loads(row) for row in self.histories[run]]
        return [{name: value for name, value in row.items() if name != "_runtime"} for row in rows]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply({})

            do_PUT = do_GET

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
                if self.path == "/graphql":
                    self._reply({"data": server.answer(json.loads(body))})
                elif stream:
                    server.take(stream[1], json.loads(body))
                    self._reply({"exitcode": None, "limits": {}})
                else:
                    self._reply({})

            def _reply(self, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def take(self, run: str, sent: dict[str, Any]) -> None:
        history = sent.get("files", {}).get("wandb-history.jsonl")
        if history:
            self.histories[run][history["offset"] :] = history["content"]

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        operation = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
        name, run = operation[1] if operation else "", (asked.get("variables") or {}).get("name", "")
        owner = {"id": "p", "name": "proofs", "entity": {"id": "e", "name": "us"}}
        if name == "UpsertBucket":
            held = self.histories.setdefault(run, [])
            bucket = {"id": run, "name": run, "project": owner, "config": "{}", "historyLineCount": len(held)}
            return {"upsertBucket": {"bucket": bucket, "inserted": not held}}
        if name == "RunResumeStatus":
            return {"model": {**owner, "bucket": self._resumed(run) if run in self.histories else None}}
        viewer = {"id": "u", "entity": "us", "username": "u", "flags": "{}", "teams": {"edges": []}}
        files = {"runID": run, "uploadHeaders": [], "files": []}
        return {"viewer": viewer, "serverInfo": {"features": []}, "createRunFiles": files, "model": {"bucket": None}}

    def _resumed(self, run: str) -> dict[str, Any]:
        held = self.histories[run]
        counts = {"logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(held)}
        last = {"summaryMetrics": held[-1] if held else "{}", "historyTail": json.dumps(held[-1:]), "eventsTail": "[]"}
        return {"id": run, "name": run, "config": "{}", "tags": [], "wandbConfig": '{"t": {"1": 1}}', **counts, **last}


@pytest.fixture
def wandb_server() -> Iterator[WandbServer]:
    server = WandbServer()
    yield server
    server.stop()
