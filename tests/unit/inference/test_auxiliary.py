"""Models beside the policy: on an engine of this process, or behind an address."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from services.config.tree import RunConfig
from services.inference.auxiliary import Auxiliaries, AuxiliaryFailed, Defaults, EngineModel
from services.inference.build import build_auxiliaries
from services.inference.config import ExternalModelConfig
from services.inference.external import ExternalModel
from services.inference.fake import FakeEngine

ASK = [{"role": "user", "content": "2+2?"}]
PROMPT = "user: 2+2?\nassistant: "


class Starting(FakeEngine):
    """Counts its starts."""

    starts = 0

    async def start(self) -> None:
        self.starts += 1
        await super().start()


class Server(ThreadingHTTPServer):
    """Answers each request with the next of `answers` (the last again and again), and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[tuple[str, dict[str, Any], str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers["Authorization"]))
        answers = self.server.answers
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server()
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


def said(text: str | None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]}


def scored(prompt_logprobs: list[Any] | None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "length", "text": "!", "prompt_logprobs": prompt_logprobs}
    return {"id": "x", "object": "text_completion", "created": 0, "model": "judge", "choices": [choice]}


def external(url: str, retries: int = 2) -> ExternalModel:
    defaults = Defaults(temperature=0.5, top_p=0.9, max_tokens=7)
    return ExternalModel(
        "judge", model_name="big-judge", base_url=url, api_key="secret", defaults=defaults, retries=retries
    )


async def test_an_engines_model_is_started_by_the_first_who_asks_and_once() -> None:
    engine = Starting(replies={PROMPT: "four"})
    model = EngineModel("judge", engine, Defaults())
    assert [await model.chat(ASK), await model.chat(ASK)] == ["four", "four"]
    await model.start()
    assert engine.starts == 1
    await model.stop()


async def test_an_engines_model_is_asked_as_it_is_configured_and_as_the_caller_says() -> None:
    model = EngineModel("judge", FakeEngine(replies={PROMPT: "four and more"}), Defaults(max_tokens=4))
    assert await model.chat(ASK) == "four"
    assert await model.chat(ASK, max_tokens=8) == "four and"
    short = EngineModel("judge", FakeEngine(replies={PROMPT: "four and more"}), Defaults(max_model_len=len(PROMPT) + 2))
    assert await short.chat(ASK) == "fo"


async def test_a_prompt_without_room_for_an_answer_is_refused_by_name() -> None:
    model = EngineModel("judge", FakeEngine(), Defaults(max_model_len=20))
    with pytest.raises(AuxiliaryFailed, match="auxiliary model 'judge': a prompt of 22 tokens, where max_model_len=20"):
        await model.chat(ASK)
    with pytest.raises(AuxiliaryFailed, match="a prompt of 20 tokens"):
        await model.logprobs([1] * 10, [1] * 10)


async def test_a_score_depends_on_the_tokens_before_and_on_nothing_else() -> None:
    model = EngineModel("teacher", FakeEngine(), Defaults())
    logprobs = await model.logprobs([1, 2], [3, 4, 5])
    assert logprobs.dtype == np.float32
    assert (await model.logprobs([1, 2, 3], [4, 5])).tolist() == logprobs[1:].tolist()
    assert (await model.logprobs([1, 2], [3, 4])).tolist() == logprobs[:2].tolist()
    assert (await model.logprobs([9, 2], [3, 4, 5])).tolist() != logprobs.tolist()


async def test_an_external_model_is_asked_by_its_own_name(server: Server) -> None:
    server.answers = [(200, said("four"))]
    model = external(server.url)
    assert await model.chat(ASK, temperature=0.0) == "four"
    await model.stop()
    ((path, body, authorization),) = server.asked
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret")
    assert body == {"model": "big-judge", "messages": ASK, "temperature": 0.0, "top_p": 0.9, "max_tokens": 7}


async def test_an_overloaded_server_is_asked_again(server: Server) -> None:
    busy = (429, {"error": {"message": "slow down"}})
    server.answers = [busy, (503, {"error": {"message": "starting"}}), (200, said("four"))]
    model = external(server.url)
    assert await model.chat(ASK) == "four"
    await model.stop()
    assert len(server.asked) == 3


async def test_a_server_that_refuses_is_named_with_what_it_says(server: Server) -> None:
    server.answers = [(404, {"error": {"message": "no model big-judge here"}})]
    model = external(server.url)
    with pytest.raises(AuxiliaryFailed, match=f"'judge': {server.url}: NotFoundError: .*no model big-judge here"):
        await model.chat(ASK)
    server.answers = [(200, said(None))]
    with pytest.raises(AuxiliaryFailed, match="answered without a text"):
        await model.chat(ASK)
    await model.stop()


async def test_a_server_that_is_not_there_is_named() -> None:
    model = external("http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(AuxiliaryFailed, match=r"'judge': http://127.0.0.1:9/v1: APIConnectionError"):
        await model.chat(ASK)
    await model.stop()


async def test_a_vllm_server_gives_the_logprobs_of_the_very_tokens(server: Server) -> None:
    places = [
        None,
        {"8": {"logprob": -9.0}},
        {"5": {"logprob": -1.5}, "1": {"logprob": -0.1}},
        {"6": {"logprob": -2.5}},
    ]
    server.answers = [(200, scored(places))]
    model = external(server.url)
    assert (await model.logprobs([7, 8], [5, 6])).tolist() == [-1.5, -2.5]
    await model.stop()
    ((path, body, _),) = server.asked
    assert path == "/v1/completions"
    assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"]) == ([7, 8, 5, 6], 0, 1)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (None, "does not give the log-probs of a prompt, which a teacher has to"),
        ([None, {"8": {"logprob": -1.0}}], "does not give the log-probs of a prompt"),
        ([None, {}, {"9": {"logprob": -1.0}}], "gave no log-prob for token 6"),
    ],
)
async def test_a_server_that_cannot_teach_is_told_apart(server: Server, places: list[Any] | None, message: str) -> None:
    server.answers = [(200, scored(places))]
    model = external(server.url)
    with pytest.raises(AuxiliaryFailed, match=message):
        await model.logprobs([7, 8], [6])
    await model.stop()


def configured(*models: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {"model": {"model_path": "m", "temperature": 0.3}, "explorer": {"auxiliary_models": list(models)}}
    )


async def test_models_are_built_by_their_names_and_asked_as_the_run_says() -> None:
    fake = {"engine_type": "fake", "extra_engine_args": {"replies": {PROMPT: "four"}}}
    built = build_auxiliaries(configured({"model_path": "models/big-judge", **fake}, {"name": "teacher", **fake}))
    assert list(built) == ["big-judge", "teacher"]
    assert await built["big-judge"].chat(ASK) == "four"
    await built.stop()
    assert len(Auxiliaries()) == 0


def test_what_a_model_leaves_open_comes_from_the_policys() -> None:
    config = configured({"model_path": "a/judge", "max_model_len": 99}, {"model_path": "b/teacher", "temperature": 0.9})
    judge, teacher = config.auxiliary_models
    assert (judge.name, judge.temperature, judge.max_model_len) == ("judge", 0.3, 99)
    assert (teacher.name, teacher.temperature, teacher.max_model_len) == ("teacher", 0.9, 2048 + 2048 + 1)


def test_an_external_model_needs_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"external_model_config": {"enable": True, "model_name": "big", "base_url_env": "JUDGE_URL"}}
    monkeypatch.delenv("JUDGE_URL", raising=False)
    with pytest.raises(AuxiliaryFailed, match="'big': the environment variable JUDGE_URL is not set"):
        build_auxiliaries(configured(named))
    monkeypatch.setenv("JUDGE_URL", "http://judge/v1")
    assert list(build_auxiliaries(configured(named))) == ["big"]
    with pytest.raises(AuxiliaryFailed, match="model_name is missing"):
        ExternalModel.configured(ExternalModelConfig(enable=True), Defaults())


async def test_a_reward_model_behind_an_address_is_asked_for_its_raw_score(server: Server) -> None:
    server.answers = [(200, {"data": [{"index": 0, "label": None, "probs": [-2.5], "num_classes": 1}]})]
    conversation = [*ASK, {"role": "assistant", "content": "four"}]
    model = ExternalModel(
        "rm", model_name="big-rm", base_url=server.url, api_key="k", defaults=Defaults(), is_classifier=True
    )
    assert await model.score(conversation) == -2.5
    ((path, body, _),) = server.asked
    assert path == "/classify"
    assert body == {
        "model": "big-rm",
        "messages": conversation,
        "add_generation_prompt": False,
        "use_activation": False,
    }
    server.answers = [(200, {"data": [{"probs": [0.1, 0.9]}]})]
    with pytest.raises(AuxiliaryFailed, match="did not answer /classify with one score"):
        await model.score(conversation)
    await model.stop()
    with pytest.raises(AuxiliaryFailed, match="it generates text and scores nothing"):
        await external(server.url).score(conversation)
