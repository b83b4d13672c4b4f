"""Checkpoints as the trainer makes them: resumed from, committed under its incarnation's fence, and followed by freeing
what they cover of the experience stream."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from bus.port import StreamState
from bus.subjects import Stream
from services.config.retention import retention
from services.runtime.context import Context
from services.store.sinks import named
from services.trainer import checkpoints
from services.trainer.announcing import weights_dtype
from services.trainer.freeing import free, freeable, fullness, held_for_reuse, is_nearly_full, stored
from services.trainer.incarnation import Incarnation
from services.trainer.learning import Learner
from services.trainer.ledger import Ledger, Numbers

log = structlog.get_logger()


class CannotResume(Exception):
    """The checkpoint and the bus do not belong together: going on would lose experiences without a word."""


@dataclass(frozen=True)
class Resumption:
    """Where the trainer goes on: the ledger, and the directory of the checkpoint that it comes from, if any."""

    ledger: Ledger
    directory: Path | None = None


class Committer:
    """Commits the checkpoints of one incarnation."""

    def __init__(self, context: Context, learner: Learner, incarnation: Incarnation) -> None:
        config = context.config
        self._context = context
        self._bus = context.bus
        self._learner = learner
        self._incarnation = incarnation
        self._run_dir = config.run_dir
        self._dtype = weights_dtype(config)
        self._keep = config.trainer.max_checkpoints_to_keep
        self._rule = retention(config.buffer.retain, config.bus.max_experience_bytes)
        self._frees = config.experience_source == "stream"
        self._has_stores = bool(named(config))
        self._covered = 0
        self.step = 0

    async def resume(self) -> Resumption:
        """The newest sound checkpoint in force, or the beginning.

        Raises:
            CannotResume: the stream lacks what the checkpoint has not seen.
            Superseded: another trainer has begun meanwhile.
        """
        await asyncio.to_thread(checkpoints.sweep, self._run_dir)
        found = await asyncio.to_thread(self._newest)
        if found is not None and self._frees:
            assert_whole(found.ledger, found.directory, await self._bus.state(Stream.EXPERIENCES))
        resumed = found or self._beginning()
        self.step = resumed.ledger.step if found else 0
        self._covered = resumed.ledger.needed if found else 0
        await self._incarnation.goes_on_from(resumed.ledger.step)
        if resumed.directory is not None:
            floor = resumed.ledger.sequences.floor
            log.info("trainer_resuming", step=resumed.ledger.step, sequence=floor, directory=str(resumed.directory))
        return resumed

    async def save(self, ledger: Ledger, is_last: bool = False) -> float:
        """Commit a checkpoint of the present step, then free what may be freed. Returns the seconds that it took.

        Raises:
            Superseded: another trainer has begun.
            CannotSave: the disk is full.
        """
        started = time.monotonic()
        ledger.run = self._bus.run
        ledger.incarnation, ledger.lineage = self._incarnation.number, self._incarnation.lineage
        with self._context.activities.doing("syncing"):
            await self._incarnation.guard(lambda: asyncio.to_thread(self._commit, ledger, is_last))
        self.step, self._covered = ledger.step, ledger.needed
        await self._free()
        return time.monotonic() - started

    async def makes_room(self, ledger: Ledger) -> bool:
        """Where the stream is nearly full, free what may go. Whether only a checkpoint now would let more of it go."""
        if not self._frees or not is_nearly_full(await self._bus.state(Stream.EXPERIENCES)):
            return False
        await self._free()
        state = await self._bus.state(Stream.EXPERIENCES)
        if ledger.step == self.step or not is_nearly_full(state):
            return False
        oldest = ledger.needed if self._keep == 1 else await self._oldest_kept()
        is_shrinking = self._rule.kind == "checkpoint" and self._keep > 0
        covered = await self._in_stores(ledger.needed)
        if covered <= state.first:
            return False
        return is_shrinking or await freeable(self._bus, self._rule, covered, oldest) > state.first

    async def why_full(self, ledger: Ledger, gathered: int) -> str:
        """What stands in the way where the stream is full and the trainer waits; empty where it is not."""
        if not self._frees:
            return ""
        state = await self._bus.state(Stream.EXPERIENCES)
        if not is_nearly_full(state):
            return ""
        config = self._context.config
        stores = await stored(self._bus) if self._has_stores else None
        if ledger.needed == state.first < ledger.sequences.floor:
            return held_for_reuse(state, ledger.reuse.pool.experiences)
        return fullness(state, config.buffer.retain, ledger.sequences.floor, gathered, config.fresh_batch_size, stores)

    def _newest(self) -> Resumption | None:
        if not self._context.config.continue_from_checkpoint:
            return None
        found = checkpoints.newest_sound(self._run_dir, self._incarnation.lineage)
        return Resumption(found.ledger(), found.directory) if found else None

    def _beginning(self) -> Resumption:
        """Step 0, of the model, of another run's checkpoint, or where a replay begins."""
        replay = self._context.config.replay
        if replay is None:
            return Resumption(Ledger(run=self._bus.run), self._of_another())
        if replay.checkpoint is None:
            begun = Ledger(run=self._bus.run, sequences=Numbers(floor=replay.from_sequence))
            return Resumption(begun, self._of_another())
        directory = Path(replay.checkpoint)
        ledger = Ledger.from_json((directory / checkpoints.LEDGER_FILE).read_text(encoding="utf-8"))
        ledger.run, ledger.lineage = self._bus.run, ()
        return Resumption(ledger, directory)

    def _of_another(self) -> Path | None:
        """The checkpoint that the model and its optimizer begin from; the ledger stays this run's own."""
        path = self._context.config.trainer.resume_from_path
        return sound_checkpoint(path) if path else None

    def _commit(self, ledger: Ledger, is_last: bool) -> None:
        asked = self._context.config.trainer.save_hf_checkpoint
        export = self._export if asked == "always" or (asked == "last" and is_last) else None
        checkpoints.commit(self._run_dir, ledger, self._learner.write_checkpoint, export)
        checkpoints.prune(self._run_dir, self._keep, ledger.lineage)

    def _export(self, directory: Path) -> None:
        self._learner.write_weights(directory, self._dtype)

    async def _free(self) -> None:
        """Free what the newest checkpoint covers and `buffer.retain` does not keep."""
        if self._frees:
            covered = await self._in_stores(self._covered)
            await free(self._bus, self._rule, covered, await self._oldest_kept())

    async def _in_stores(self, covered: int) -> int:
        """Below which sequence the stream is covered, and in the stores too, where there are any."""
        return min(covered, (await stored(self._bus)).sequence + 1) if self._has_stores else covered

    async def _oldest_kept(self) -> int:
        kept = await asyncio.to_thread(checkpoints.checkpoints, self._run_dir, self._incarnation.lineage)
        return min((checkpoint.ledger().needed for checkpoint in kept), default=0)


def newest_on_disk(run_dir: Path) -> Ledger:
    """The ledger of the latest trainer that has committed anything."""
    ledgers = [checkpoint.ledger() for checkpoint in checkpoints.committed_checkpoints(run_dir)]
    return max(ledgers, key=lambda ledger: (ledger.incarnation, ledger.step), default=Ledger())


def sound_checkpoint(path: str) -> Path:
    """The directory at `trainer.resume_from_path`, its files held against the manifest; one of veRL itself has none.

    Raises:
        CannotResume: a file is not the one that was committed, or one of our checkpoints has lost its manifest.
    """
    found = checkpoints.Checkpoint(0, Path(path).expanduser().absolute())
    if found.has_manifest:
        damage = found.damage(is_thorough=True)
        if damage:
            raise CannotResume(f"trainer.resume_from_path={path} is damaged: {'; '.join(damage)}")
    elif (found.directory / checkpoints.LEDGER_FILE).is_file():
        raise CannotResume(
            f"trainer.resume_from_path={path} has no {checkpoints.MANIFEST_FILE}, so nothing says that its files are "
            "whole: name another step, or convert its weights (trinity convert checkpoint) and set model.model_path"
        )
    else:
        log.warning("checkpoint_not_verified", directory=path, reason="it is of veRL itself, which writes no manifest")
    return found.directory


def assert_whole(ledger: Ledger, directory: Path | None, state: StreamState, uses_again: bool = False) -> None:
    """That the stream holds what the checkpoint has not seen; where the run `uses_again`, what may be used again too.

    Raises:
        CannotResume: it does not.
    """
    floor = ledger.sequences.floor
    if state.last + 1 < floor:
        raise CannotResume(
            f"{directory} holds the experience stream up to sequence {floor - 1}, and the stream on this bus ends at "
            f"{state.last}: this is another bus, or its store was removed. Bring the store back, or begin a new run "
            "under another name"
        )
    needed = ledger.needed if uses_again else floor
    if state.first > needed:
        wants = "goes on at" if needed == floor else "may use again experiences from"
        raise CannotResume(
            f"{directory} {wants} sequence {needed} of the experience stream, and the stream begins at "
            f"{state.first}: what lies between was freed for a later checkpoint. Resume from that one, or begin a new "
            "run; buffer.retain=checkpoint keeps what every kept checkpoint needs"
        )
