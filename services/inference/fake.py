"""An engine for tests: no model, but every promise of the port, at a chosen speed and the same on every machine."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from schemas.weights import WeightVersion
from services.inference.engine import Completion, EngineDied, EngineLoad, Heard, Sampling

MARKER = "fake_weights.json"
FIRST_PRINTABLE, LAST_PRINTABLE = 32, 126


class ByteTokenizer:
    """Token ids are the bytes of the text in UTF-8."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode("utf-8", errors="replace")

    def get_vocab(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)}

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: object) -> object:
        """`role: content` lines; the last is left open where `continue_final_message`."""
        text = "".join(f"{message['role']}: {message['content']}\n" for message in conversation)
        if options.get("continue_final_message"):
            text = text[:-1]
        if options.get("add_generation_prompt"):
            text += "assistant: "
        return text if options.get("tokenize") is False else self.encode(text)


def write_fake_weights(directory: Path, version: int) -> None:
    """What `FakeEngine.load` expects in the place of weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).write_text(json.dumps({"version": version}), encoding="utf-8")


class FakeEngine:
    """Each token is a hash of the weight version, the prompt, the seed and its place.

    Without a seed, the n-th request for a prompt takes the seed n. `replies` answer prompts, by their text, literally:
    of a list, the n-th request takes the n-th. `lines` answer all other requests in their order, whatever they ask; the
    last of them is repeated.
    """

    def __init__(
        self,
        *,
        delay_s_per_token: float = 0.0,
        replies: Mapping[str, str | Sequence[str]] | None = None,
        lines: Sequence[str] = (),
    ) -> None:
        self.delay_s_per_token = delay_s_per_token
        self.replies = dict(replies or {})
        self.lines = list(lines)
        self._tokenizer = ByteTokenizer()
        self._weights: WeightVersion | None = None
        self._is_loaded = asyncio.Event()
        self._is_loaded.set()
        self._is_stopped = False
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._requests = 0
        self._tokens_sampled = 0

    @property
    def weights(self) -> WeightVersion | None:
        return self._weights

    @property
    def tokenizer(self) -> ByteTokenizer:
        return self._tokenizer

    async def start(self) -> None:
        self._is_stopped = False

    async def stop(self) -> None:
        """Requests in flight, and those that come later, fail."""
        self._is_stopped = True

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, heard: Heard | None = None) -> Completion:
        prompt = tuple(prompt_ids)
        asked_before = self._asked[prompt]
        seed = asked_before if sampling.seed is None else sampling.seed
        self._asked[prompt] += 1
        self._requests += 1
        try:
            return await self._sampled(prompt, seed, sampling, self._reply(prompt, asked_before), heard)
        finally:
            self._requests -= 1

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """A hash of the version, of the tokens before and of the token itself."""
        tokens = (*prompt_ids, *response_ids)
        version = 0 if self._weights is None else self._weights.version
        places = range(len(prompt_ids), len(tokens))
        return np.asarray([_drawn(version, tokens[:place], tokens[place], place)[1] for place in places], np.float32)

    async def load(self, directory: str, weights: WeightVersion) -> None:
        """Adopt `weights` from a directory of `write_fake_weights`.

        Raises:
            ValueError: the directory holds another version.
        """
        self._is_loaded.clear()
        try:
            found = json.loads((Path(directory) / MARKER).read_text(encoding="utf-8"))["version"]
            if found != weights.version:
                raise ValueError(f"{directory} holds version {found}, where {weights.version} was announced")
            self._weights = weights
        finally:
            self._is_loaded.set()

    def load_now(self) -> EngineLoad:
        return EngineLoad(requests=self._requests, tokens_sampled=self._tokens_sampled)

    def _reply(self, prompt: tuple[int, ...], asked_before: int) -> str | None:
        """What is said literally, if anything is."""
        scripted = self.replies.get(self._tokenizer.decode(prompt))
        if isinstance(scripted, str):
            return scripted
        if scripted:
            return scripted[min(asked_before, len(scripted) - 1)]
        if not self.lines:
            return None
        return self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]

    async def _sampled(
        self, prompt: tuple[int, ...], seed: int, sampling: Sampling, reply: str | None, heard: Heard | None
    ) -> Completion:
        literal = None if reply is None else self._tokenizer.encode(reply)
        wanted = sampling.max_tokens if literal is None else len(literal)
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        while len(tokens) < min(wanted, sampling.max_tokens) and not self._stop(tokens, sampling):
            await asyncio.sleep(self.delay_s_per_token)
            await self._is_loaded.wait()
            if self._is_stopped:
                raise EngineDied("the fake engine was stopped")
            version = 0 if self._weights is None else self._weights.version
            token, logprob = _drawn(version, prompt, seed, len(tokens))
            tokens.append(token if literal is None else literal[len(tokens)])
            logprobs.append(logprob)
            versions.append(version)
            self._tokens_sampled += 1
            if heard is not None:
                heard(tokens, logprobs, self._tokenizer.decode(tokens))
        stop = self._stop(tokens, sampling)
        text = self._tokenizer.decode(tokens)
        return Completion(
            token_ids=np.asarray(tokens, dtype=np.int32),
            logprobs=np.asarray(logprobs, dtype=np.float32),
            token_versions=np.asarray(versions, dtype=np.int32),
            text=text.split(stop, 1)[0] if stop else text,
            is_truncated=not stop and len(tokens) == sampling.max_tokens and (literal is None or wanted > len(tokens)),
        )

    def _stop(self, tokens: Sequence[int], sampling: Sampling) -> str | None:
        text = self._tokenizer.decode(tokens)
        return next((stop for stop in sampling.stop if stop in text), None)


def _drawn(version: int, prompt: tuple[int, ...], seed: int, place: int) -> tuple[int, float]:
    """A printable byte and a log-prob in [-3, 0)."""
    digest = hashlib.sha256(f"{version}|{prompt}|{seed}|{place}".encode()).digest()
    token = FIRST_PRINTABLE + int.from_bytes(digest[:4], "little") % (LAST_PRINTABLE - FIRST_PRINTABLE + 1)
    return token, -3.0 * (int.from_bytes(digest[4:8], "little") + 1) / 2**32
