"""What an independent reader concludes: the ledger that the stream makes, held against the one in the checkpoint.

Invariant: the list of faults is empty exactly where every released task has one fate, the weights hold what the ledger
says, and the stream, the announcements and the quarantine agree with it.
"""

import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from independent import Kept, Observed, body_of

RULE = "reward_filter"
"""The one rule by which answers are filtered in these runs."""
_DTYPES = {"tokens": "<i4", "action_mask": "|u1", "logprobs": "<f4", "token_versions": "<i4"}
_LOGPROB_SLACK = 1e-3
_FIELDS = {"position", "prompt_length", "reward", "metrics", "prompt_text", "response_text", "is_truncated", "step"}
_EXPERIENCE = {*_DTYPES, *_FIELDS, "temperature", "teacher_logprobs", "state", "step_reward"}
_ABOUT = {"run", "task", "repeat_times", "explorer", "retry"}
_GROUP = _ABOUT | {"incarnation", "experiences", "attempt", "started_at", "finished_at", "tokenizer"}
_GIVEN_UP = _ABOUT | {"attempts", "error", "abandoned_at"}
"""The fields of each message, by docs/asyncapi.yaml: one with another field is not a message of version 1."""


@dataclass(frozen=True)
class Terms:
    """What the configuration of the run promises. `staleness_bound` is in steps, `max_tokens` for a whole sequence.
    Answers with a reward below `least_reward` are filtered, and made up for within `refill_batches` a step.
    `train_batch_size` experiences of a step are fresh. With `most_uses`, it is filled up to `whole_batch_size` from a
    pool of at most `capacity`, by `version - decay * uses`, without a cooldown."""

    train_batch_size: int
    staleness_bound: int | None
    max_tokens: int
    least_reward: float = -math.inf
    refill_batches: int = 10
    whole_batch_size: int = 0
    most_uses: int = 0
    decay: float = 2.0
    capacity: int = 0


@dataclass
class Again:
    """A group of the pool, as it was trained on first, with its lowest version."""

    group: dict[str, Any]
    version: int
    uses: int = 1

    @property
    def size(self) -> int:
        return len(self.group["experiences"])


@dataclass
class Computed:
    """The ledger that the stream makes, without looking at the one in the checkpoint.

    `trained` says at which step each task was, `filtered` names those of which nothing was; `stale` holds (steps,
    explorer's incarnation) of every trained token; `digest` is the state of a fake backend after exactly these steps.
    """

    floor: int = 1
    step: int = 0
    trained: dict[int, int] = field(default_factory=dict)
    filtered: set[int] = field(default_factory=set)
    times: Counter[int] = field(default_factory=Counter)
    abandoned: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    unusable: set[int] = field(default_factory=set)
    stale: Counter[tuple[int, int]] = field(default_factory=Counter)
    pool: dict[int, Again] = field(default_factory=dict)
    digest: str = hashlib.sha256(b"start").hexdigest()

    @property
    def ordinals(self) -> set[int]:
        return set(self.trained) | self.filtered | set(self.abandoned)

    @property
    def filtered_by_rule(self) -> dict[str, int]:
        found = {"abandoned": sum(self.abandoned.values()), RULE: self.counts["filtered"]}
        return {rule: count for rule, count in found.items() if count}


class Computation:
    """Takes the messages of the stream in order and makes batches of them, by the rules of docs/guarantees.md."""

    def __init__(self, run: str, terms: Terms, short_batches: set[int]) -> None:
        self._run = run
        self._terms = terms
        self._short_batches = short_batches
        self._open: dict[int, dict[str, Any]] = {}
        self._owed = 0
        self._made_up = 0
        self.computed = Computed()

    def take(self, kept: Kept) -> None:
        now = self.computed
        now.floor = kept.sequence + 1
        message = self.usable(kept)
        if message is None:
            now.unusable.add(kept.sequence)
            now.counts["quarantined"] += 1
        elif "experiences" in message:
            self._answer(kept.sequence, message)
        else:
            self._abandon(message)
        is_short = kept.sequence in self._short_batches and self._owed > 0
        if self._owed >= self._terms.train_batch_size or is_short:
            self._close()

    def usable(self, kept: Kept) -> dict[str, Any] | None:
        """The group, or the word that there will be none; None where it is neither."""
        group, given_up = body_of(kept.whole, "group_sampled"), body_of(kept.whole, "task_abandoned")
        if group is not None and set(group) <= _GROUP and group.get("run") == self._run:
            return None if _faults(group, self._terms.max_tokens, self.computed.step) else group
        if given_up is not None and set(given_up) <= _GIVEN_UP and given_up.get("run") == self._run:
            return given_up
        return None

    def _answer(self, sequence: int, group: dict[str, Any]) -> None:
        now, ordinal, size = self.computed, group["task"]["ordinal"], len(group["experiences"])
        if ordinal in now.trained or ordinal in now.filtered:
            now.counts["duplicates"] += size
            return
        now.abandoned.pop(ordinal, None)
        kept = [each for each in group["experiences"] if each["reward"] >= self._terms.least_reward]
        now.times[ordinal] += 1
        now.counts["trained"] += len(kept)
        now.counts["filtered"] += size - len(kept)
        now.counts["tokens_trained"] += sum(len(each["logprobs"]) // 4 for each in kept)
        if kept:
            now.trained[ordinal] = now.step + 1
            self._open[sequence] = {**group, "experiences": kept}
        else:
            now.filtered.add(ordinal)
        most = self._terms.refill_batches * self._terms.train_batch_size
        made_up = min(size - len(kept), most - self._made_up)
        self._made_up += made_up
        self._owed += max(group["repeat_times"], size) - made_up

    def _abandon(self, given_up: dict[str, Any]) -> None:
        now, ordinal = self.computed, given_up["task"]["ordinal"]
        if ordinal in now.ordinals:
            return  # a second word about the same task holds no experiences
        now.abandoned[ordinal] = given_up["repeat_times"]
        self._owed += given_up["repeat_times"]

    def _close(self) -> None:
        now = self.computed
        again = self._used_again()
        hasher = hashlib.sha256(now.digest.encode())
        for group in [again[place].group for place in sorted(again)] + [*self._open.values()]:
            rewards = {each["reward"] for each in group["experiences"]}
            assert len(rewards) == 1, f"these runs give every answer of a task one reward, and not {rewards}"
            for each in group["experiences"]:
                length = len(each["logprobs"]) // 4
                hasher.update(each["tokens"] + np.zeros(length, np.float32).tobytes())
        for group in self._open.values():
            for version in [version for each in group["experiences"] for version in _versions(each)]:
                now.stale[now.step - version, group["incarnation"]] += 1
        if self._open or again:
            now.digest = hasher.hexdigest()
        self._keep()
        now.step, self._owed, self._made_up, self._open = now.step + 1, 0, 0, {}

    def _used_again(self) -> dict[int, Again]:
        """What fills the step up, by priority, this use counted."""
        now, chosen = self.computed, {}
        room = self._terms.whole_batch_size - sum(len(group["experiences"]) for group in self._open.values())
        for place in sorted(now.pool, key=lambda place: (-self._priority(place), place)):
            if now.pool[place].size <= room:
                chosen[place] = now.pool[place]
                room -= chosen[place].size
        for each in chosen.values():
            each.uses += 1
            now.counts["reused"] += each.size
            now.counts["tokens_reused"] += sum(len(one["logprobs"]) // 4 for one in each.group["experiences"])
        return chosen

    def _keep(self) -> None:
        """What may be used again after this step."""
        pool, terms = self.computed.pool, self._terms
        for sequence, group in self._open.items():
            lowest = min(version for each in group["experiences"] for version in _versions(each))
            pool[sequence] = Again(group, lowest)
        for place in [place for place, each in pool.items() if each.uses >= terms.most_uses]:
            del pool[place]
        while sum(each.size for each in pool.values()) > terms.capacity:
            del pool[min(pool, key=lambda place: (self._priority(place), place))]

    def _priority(self, place: int) -> float:
        each = self.computed.pool[place]
        return each.version - self._terms.decay * each.uses


def _versions(each: dict[str, Any]) -> list[int]:
    return [int(version) for version in np.frombuffer(each["token_versions"], "<i4")]


def _faults(group: dict[str, Any], max_tokens: int, newest_version: int) -> list[str]:
    """Why a group cannot be trained on, by docs/guarantees.md."""
    try:
        return [words for each in group["experiences"] for words in _faults_of(each, group, max_tokens, newest_version)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [repr(error)]


def _faults_of(each: dict[str, Any], group: dict[str, Any], max_tokens: int, newest: int) -> Iterator[str]:
    arrays = {name: np.frombuffer(each[name], dtype) for name, dtype in _DTYPES.items()}
    tokens, versions, logprobs = arrays["tokens"], arrays["token_versions"], arrays["logprobs"]
    length = len(tokens) - each["prompt_length"]
    checks = {
        "fields": set(each) <= _EXPERIENCE,
        "position": 0 <= each["position"] < group["repeat_times"],
        "lengths": length >= 1 and {len(arrays[name]) for name in _DTYPES if name != "tokens"} == {length},
        "room": len(tokens) <= max_tokens and each["prompt_length"] >= 1,
        "reward": math.isfinite(each["reward"]),
        "mask": set(arrays["action_mask"].tolist()) <= {0, 1},
        "tokens": len(tokens) > 0 and int(tokens.min()) >= 0,
    }
    yield from (name for name, holds in checks.items() if not holds)
    if all(checks.values()):
        if not np.isfinite(logprobs).all() or float(logprobs.max()) > _LOGPROB_SLACK:
            yield "logprobs"
        if int(versions.min()) < 0 or int(versions.max()) > newest:
            yield "versions"


def computation_of(observed: Observed, terms: Terms) -> Computation:
    """What the stream makes of what the checkpoint says it has read: everything below its floor."""
    floor = observed.ledger["sequences"]["floor"]
    computation = Computation(observed.run, terms, set(observed.ledger["short_batches"]))
    for sequence in sorted(observed.experiences):
        if sequence < floor:
            computation.take(observed.experiences[sequence])
    return computation


def faults(observed: Observed, terms: Terms) -> list[str]:
    """Everything that is wrong with a run that is over, in words."""
    if observed.missed:
        return [f"the reader was too slow: {observed.missed[:20]} were freed before it came"]
    if not observed.ledger:
        return ["no checkpoint was committed"]
    computation = computation_of(observed, terms)
    computed = computation.computed
    return [
        *_tasks_without_one_fate(observed, computed),
        *_ledger_apart(observed.ledger, computed),
        *_weights_apart(observed, computed),
        *_quarantine_apart(observed, computed),
        *_announcements_out_of_order(observed.announced),
        *_stale(observed.announced, computed, terms),
        *_left_over(observed, computation),
    ]


def _tasks_without_one_fate(observed: Observed, computed: Computed) -> Iterator[str]:
    released = set(range(observed.release["released"]))
    for name, numbers in {
        "lost: released, and neither trained on nor filtered nor abandoned": released - computed.ordinals,
        "never released, and yet in the ledger": computed.ordinals - released,
        "twice: taken up more than once": {n for n, times in computed.times.items() if times > 1},
        "two fates: answered and abandoned": (set(computed.trained) | computed.filtered) & set(computed.abandoned),
        "abandoned, and not in the quarantine": set(computed.abandoned) - observed.abandoned_in_quarantine(),
    }.items():
        if numbers:
            yield f"tasks {sorted(numbers)[:20]} {name}"


def _ledger_apart(ledger: dict[str, Any], computed: Computed) -> Iterator[str]:
    ordinals = ledger["ordinals"]
    written = set(range(ordinals["floor"])) | set(ordinals["above"])
    counts = ledger["counts"]
    for name, told, found in (
        ("above its floor of sequences", ledger["sequences"]["above"], []),
        ("ordinals listed below the floor or twice", len(written) - ordinals["floor"], len(ordinals["above"])),
        ("first sequence that it does not hold", ledger["sequences"]["floor"], computed.floor),
        ("ordinals that only one of the two holds", sorted(written ^ computed.ordinals), []),
        ("step", ledger["step"], computed.step),
        ("abandoned", {int(n): owed for n, owed in ledger["abandoned"].items()}, computed.abandoned),
        ("filtered", counts["filtered"], computed.filtered_by_rule),
        *((name, counts[name], computed.counts[name]) for name in ("trained", "duplicates", "tokens_trained")),
        ("quarantined", counts["quarantined"], computed.counts["quarantined"]),
        *((name, counts.get(name, 0), computed.counts[name]) for name in ("reused", "tokens_reused")),
        ("pool, by sequence and uses", _pool_of(ledger), {place: each.uses for place, each in computed.pool.items()}),
    ):
        if told != found:
            yield f"the ledger says of {name}: {told}, the stream makes {found}"


def _pool_of(ledger: dict[str, Any]) -> dict[int, int]:
    groups = ledger["reuse"]["pool"]["groups"] if "reuse" in ledger else []
    return {each["sequence"]: each["uses"] for each in groups}


def _weights_apart(observed: Observed, computed: Computed) -> Iterator[str]:
    if observed.weights["digest"] != computed.digest:
        yield f"the weights of step {observed.weights['step']} do not hold what the ledger says, each once, in order"


def _quarantine_apart(observed: Observed, computed: Computed) -> Iterator[str]:
    refused = {sequence for sequence in observed.refused if sequence < computed.floor}
    if refused - computed.unusable:
        yield f"sequences {sorted(refused - computed.unusable)} are in the quarantine and can be used"
    if computed.unusable - refused:
        yield f"sequences {sorted(computed.unusable - refused)} cannot be used, and are not in the quarantine"


def _announcements_out_of_order(announced: list[dict[str, Any]]) -> Iterator[str]:
    said = [(each["weights"]["incarnation"], each["weights"]["version"], each["is_final"]) for each in announced]
    for before, after in itertools.pairwise(said):
        if after <= before:
            yield f"{after} was announced after {before}"


def rolled_back(announced: list[dict[str, Any]]) -> dict[int, int]:
    """Steps that each incarnation made again: its predecessors' highest version, less the one that it began with."""
    first: dict[int, int] = {}
    highest: dict[int, int] = defaultdict(int)
    for each in announced:
        incarnation, version = each["weights"]["incarnation"], each["weights"]["version"]
        first.setdefault(incarnation, version)
        highest[incarnation] = max(highest[incarnation], version)
    return {
        incarnation: max(0, max((highest[n] for n in highest if n < incarnation), default=0) - version)
        for incarnation, version in first.items()
    }


def _stale(announced: list[dict[str, Any]], computed: Computed, terms: Terms) -> Iterator[str]:
    """A task that was released before a trainer died may be sampled under the version that its successor began with."""
    if terms.staleness_bound is None:
        return
    again = rolled_back(announced)
    for (steps, incarnation), tokens in sorted(computed.stale.items()):
        bound = terms.staleness_bound + again.get(incarnation, 0)
        if steps > bound:
            yield f"{tokens} tokens are {steps} steps stale, where {bound} are promised (incarnation {incarnation})"


def _left_over(observed: Observed, computation: Computation) -> Iterator[str]:
    """After the last step nothing may follow that has no fate yet."""
    for sequence, kept in observed.experiences.items():
        message = computation.usable(kept) if sequence >= computation.computed.floor else None
        if message is not None and message["task"]["ordinal"] not in computation.computed.ordinals:
            yield f"task {message['task']['ordinal']} at sequence {sequence} was never taken up"
