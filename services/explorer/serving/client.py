"""A client of a serving explorer: conversations by OpenAI's own client, and feedback on them.

```python
client = TrinityClient.of_file("checkpoints/project/name/explorer_server_url.txt")
answer = client.openai().chat.completions.create(model=client.model(), messages=[{"role": "user", "content": "2+2?"}])
client.feedback(1.0, [answer.id])
client.commit()
```
"""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_TIMEOUT_S = 30.0
_OPEN = "EMPTY"


class TrinityClient:
    """One task of one user. Feedback is given in its name; `commit` says that it is done.

    Raises, from every call: httpx.HTTPStatusError with the server's words.
    """

    def __init__(self, url: str, *, api_key: str = _OPEN, task_id: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key
        self.task_id = task_id or uuid.uuid4().hex[:12]

    @classmethod
    def of_file(cls, path: str | Path, **options: Any) -> Self:
        """The explorer whose address stands in a file."""
        return cls(Path(path).read_text(encoding="utf-8").strip(), **options)

    def openai(self) -> "OpenAI":
        """OpenAI's client of the served model."""
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key)

    def openai_async(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key)

    def model(self) -> str:
        """The name of the served model."""
        return str(self._asked("GET", "/v1/models")["data"][0]["id"])

    def is_alive(self) -> bool:
        """Whether conversations are answered now."""
        import httpx

        try:
            return httpx.get(f"{self.url}/health", timeout=_TIMEOUT_S).status_code == 200
        except httpx.TransportError:
            return False

    def feedback(self, reward: float, msg_ids: list[str], run_id: str | int = 0) -> dict[str, Any]:
        """What responses were worth, as run `run_id` of this client's task."""
        said = {"reward": reward, "msg_ids": msg_ids, "task_id": self.task_id, "run_id": run_id}
        return self._asked("POST", "/feedback", said)

    def commit(self) -> dict[str, Any]:
        """This client's task is done, and all others that have all their runs are published too."""
        return self._asked("POST", "/commit", {"task_ids": [self.task_id]})

    def metrics(self) -> dict[str, Any]:
        return self._asked("GET", "/metrics")

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        import httpx

        headers = {"Authorization": f"Bearer {self.api_key}"}
        answer = httpx.request(method, self.url + path, json=body, headers=headers, timeout=_TIMEOUT_S)
        if answer.is_error:
            said = f"{method} {path}: {answer.status_code}: {answer.text}"
            raise httpx.HTTPStatusError(said, request=answer.request, response=answer)
        found: dict[str, Any] = answer.json()
        return found
