"""What users of a serving explorer say beside their conversations: `/feedback`, and `/commit`."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from services.explorer.serving.history import History, Judged
from services.inference.openai.endpoint import Endpoint, body_of
from services.inference.openai.errors import ApiError


class Feedback(BaseModel):
    """What responses were worth. `task_id` names the task whose runs are compared, `run_id` the run of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reward: FiniteFloat
    msg_ids: list[str] = Field(min_length=1)
    task_id: str | int | None = None
    run_id: str | int = 0


class Commit(BaseModel):
    """Which tasks are done though runs of them are missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_ids: list[str | int] = Field(default_factory=list)


def collect(endpoint: Endpoint, history: History, repeat_times: int, committed: Callable[[], None]) -> None:
    """Add the routes. `committed` is called when there is something to publish."""

    async def feedback(request: Request) -> Response:
        said = await body_of(request, Feedback)
        task = None if said.task_id is None else str(said.task_id)
        judged = await asyncio.to_thread(history.judge, said.msg_ids, said.reward, task, str(said.run_id))
        if not judged.updated:
            raise _refused(judged)
        return JSONResponse(
            {
                "status": "success",
                "updated": list(judged.updated),
                "unknown": list(judged.unknown),
                "committed": list(judged.committed),
            }
        )

    async def commit(request: Request) -> Response:
        said = await body_of(request, Commit) if await request.body() else Commit()
        done = await asyncio.to_thread(history.commit, repeat_times, [str(each) for each in said.task_ids])
        committed()
        waiting = {task: f"{runs} of {repeat_times} runs" for task, runs in done.waiting.items()}
        return JSONResponse(
            {"status": "success", "groups": len(done.groups), "messages": done.messages, "waiting": waiting}
        )

    router = APIRouter(dependencies=[Depends(endpoint.authorized)])
    router.add_api_route("/feedback", feedback, methods=["POST"], response_model=None)
    router.add_api_route("/commit", commit, methods=["POST"], response_model=None)
    endpoint.app.include_router(router)
    endpoint.also_counted = lambda: asyncio.to_thread(_counts, history)


def _refused(judged: Judged) -> ApiError:
    if judged.committed:
        said = f"{', '.join(judged.committed)}: committed before, so that the reward counts as it was"
        return ApiError(409, said, param="msg_ids", code="already_committed")
    said = f"{', '.join(judged.unknown)}: no response has this id here; it is the `id` of a completion"
    return ApiError(404, said, param="msg_ids", code="unknown_message")


def _counts(history: History) -> dict[str, Any]:
    return {"history": history.counts()}
