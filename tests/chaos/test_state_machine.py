"""Many short histories of a run, chosen by Hypothesis: after each of them an independent reader finds every task in one
place, and the weights hold exactly what the ledger says."""

import asyncio
import copy
import os
import random
import signal
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from garbage import shapeless, spoilt
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from independent import IndependentReader
from simulated import Sampler, SteppedExplorer, SteppedSynchronizer, SteppedTrainer
from verdict import Terms, faults

from bus.jetstream import connect
from bus.server import LocalServer
from schemas.weights import WeightVersion
from services.config.load import load
from services.runtime.bus_access import settings as bus_settings
from services.runtime.context import Superseded as TrainerSuperseded
from services.synchronizer.pace import staleness_bound
from services.synchronizer.plan import pace_of
from services.synchronizer.progress import Superseded as SynchronizerSuperseded

STEPS, BATCH, REPEAT = 8, 2, 3
LEAST_REWARD, REFILL_BATCHES = 0.5, 2
WHOLE_BATCH, MOST_USES, CAPACITY = 12, 3, 9
LEASE_S = 4
PATIENCE_S = 40.0
WHICH = st.integers(0, 30)


def _small(config: dict[str, Any], root: Path, reuses: bool) -> dict[str, Any]:
    config = copy.deepcopy(config)
    config |= {"checkpoint_root_dir": str(root / "checkpoints")}
    config["algorithm"]["repeat_times"] = REPEAT
    config["buffer"] |= {"batch_size": BATCH, "total_steps": STEPS, "retain": "checkpoint"}
    config["synchronizer"] |= {"task_lease": LEASE_S, "max_deliver": 50}
    config["trainer"]["max_checkpoints_to_keep"] = 2
    operators = [{"name": "reward_filter", "args": {"threshold": LEAST_REWARD}}]
    config["data_processor"] = {"experience_pipeline": {"operators": operators, "refill_batches": REFILL_BATCHES}}
    if reuses:
        arguments = {"use_count_limit": MOST_USES}
        reuse = {"enable": True, "reuse_cooldown_time": 0, "priority_fn": "decay_limit_randomization"}
        replay_buffer = {**reuse, "priority_fn_args": arguments}
        buffer = {"capacity": CAPACITY, "replay_buffer": replay_buffer}
        config["buffer"] |= {"train_batch_size": WHOLE_BATCH, "trainer_input": {"experience_buffer": buffer}}
    return config


class Histories(RuleBasedStateMachine):
    """One run on one server. Each rule is one thing that may happen next.

    Which rules there are must be a function of the rules before: how many tasks a pull brings is not, so a rule about
    tasks in hand pulls where there are none, and does nothing where there are none to be pulled.
    """

    base: dict[str, Any]
    reuses: bool

    @initialize()
    def begin(self) -> None:
        self._runner = asyncio.Runner()
        self._loop_runs(self._begin())

    def _loop_runs(self, doing: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(doing)

    async def _begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trinity-histories-")
        root = Path(self._folder.name)
        path = root / "run.yaml"
        path.write_text(yaml.safe_dump(_small(self.base, root, self.reuses)), encoding="utf-8")
        self.config = load(path).config
        self.server = LocalServer(root / "store")
        await self.server.start()
        self.buses = [
            await connect(self.server.url, self.config.run_name, name=name, settings=bus_settings(self.config))
            for name in ("trainer", "synchronizer", "explorer")
        ]
        await self.buses[0].declare()
        self.reader = IndependentReader(self.server.url, self.config.run_name)
        await self.reader.start()
        self.explorer = SteppedExplorer(self.buses[2], Sampler())
        self.draw = random.Random(0)
        self.trainers = 0
        self.frozen: list[SteppedTrainer] = []
        self.stale: list[SteppedSynchronizer] = []
        self.trainer = await self._new_trainer()
        self.term = 1
        self.synchronizer = await SteppedSynchronizer(self.config, self.buses[1], 1).take_over()

    async def _new_trainer(self) -> SteppedTrainer:
        self.trainers += 1
        await self.reader.catch_up()
        return await SteppedTrainer(self.config, self.buses[0], f"trainer-{self.trainers}").begin()

    @property
    def weights(self) -> WeightVersion:
        """What an explorer that is up to date samples with."""
        return WeightVersion(incarnation=self.trainer.incarnation.number, version=self.trainer.step)

    # ---------------------------------------------------------------------------------------------- what should happen

    @rule()
    def a_batch_is_released(self) -> None:
        self._loop_runs(self.synchronizer.release())

    @rule(most=st.integers(1, 4))
    def tasks_are_pulled(self, most: int) -> None:
        self._loop_runs(self.explorer.pull(most))

    @rule(which=WHICH)
    def a_task_is_answered(self, which: int) -> None:
        if self._has_tasks():
            self._loop_runs(self.explorer.answer(which, self.weights))

    @rule()
    def the_trainer_trains(self) -> None:
        self._loop_runs(self.trainer.read())
        while self._loop_runs(self.trainer.train()):
            pass

    @rule()
    def a_checkpoint_is_committed(self) -> None:
        self._loop_runs(self.reader.catch_up())
        self._loop_runs(self.trainer.save())

    @rule(steps=st.integers(1, 3))
    def the_run_goes_on(self, steps: int) -> None:
        for _ in range(steps):
            self._loop_runs(self._go_on())

    @rule()
    def all_tasks_in_hand_are_answered(self) -> None:
        while self.explorer.hands:
            self._loop_runs(self.explorer.answer(0, self.weights))

    def _has_tasks(self) -> bool:
        if not self.explorer.hands:
            self._loop_runs(self.explorer.pull(4))
        return bool(self.explorer.hands)

    # ------------------------------------------------------------------------------------------- what happens to others

    @rule(which=WHICH)
    def an_explorer_dies_between_publishing_and_acknowledging(self, which: int) -> None:
        if self._has_tasks():
            self._loop_runs(self.explorer.answer(which, self.weights, dies_before_ack=True))

    @rule(which=WHICH)
    def a_task_is_abandoned(self, which: int) -> None:
        if self._has_tasks():
            self._loop_runs(self.explorer.abandon(which))

    @rule()
    def an_explorer_dies_with_its_tasks(self) -> None:
        if self._has_tasks():
            self._loop_runs(self.explorer.die(self.weights))

    @rule(which=WHICH, is_forgotten=st.booleans())
    def a_late_answer_comes(self, which: int, is_forgotten: bool) -> None:
        if self.explorer.late:
            message_id = f"late:{self.draw.getrandbits(64)}" if is_forgotten else None
            self._loop_runs(self.explorer.wake(which, message_id))

    @rule(which=WHICH, has_new_id=st.booleans())
    def an_answer_is_stored_again(self, which: int, has_new_id: bool) -> None:
        self._loop_runs(self.reader.catch_up())
        kept = list(self.reader.observed.experiences.values())
        if kept:
            again = kept[which % len(kept)]
            message_id = f"again:{self.draw.getrandbits(64)}" if has_new_id else again.headers.get("Nats-Msg-Id")
            self._loop_runs(self.reader.store(again.subject, again.payload, message_id, again.headers))

    @rule(which=WHICH, under_id=st.booleans())
    def garbage_comes(self, which: int, under_id: bool) -> None:
        self._loop_runs(self._garbage(which, under_id))

    async def _garbage(self, which: int, under_id: bool) -> None:
        run, released = self.config.run_name, await self.released()
        await self.reader.catch_up()
        groups = self.reader.observed.answers()
        payloads = [*shapeless(self.draw), *(spoilt(groups[-1], released) if groups else ())]
        answer_id = f"{run}:answer:{released + which % 4}:0" if under_id else None
        task_id = f"{run}:task:{released + which % 4}:0" if under_id else None
        await self.reader.store(self.reader.subject("experiences", "x"), payloads[which % len(payloads)], answer_id)
        await self.reader.store(self.reader.subject("tasks", "sums"), payloads[which % len(payloads)], task_id)
        await self.reader.store(self.reader.subject("weights"), payloads[which % len(payloads)])

    # ----------------------------------------------------------------------------------------- what the trainer suffers

    @rule()
    def the_trainer_dies(self) -> None:
        self.trainer = self._loop_runs(self._new_trainer())

    @rule(after_rename=st.booleans())
    def the_trainer_dies_in_a_commit(self, after_rename: bool) -> None:
        self._loop_runs(self.trainer.die_in_commit(after_rename))
        self.trainer = self._loop_runs(self._new_trainer())

    @rule()
    def the_trainer_freezes_and_another_begins(self) -> None:
        self.frozen.append(self.trainer)
        self.trainer = self._loop_runs(self._new_trainer())

    @precondition(lambda self: self.frozen)
    @rule(which=WHICH, act=st.sampled_from(["announce", "save", "die_in_commit"]))
    def a_frozen_trainer_wakes(self, which: int, act: str) -> None:
        woken = self.frozen.pop(which % len(self.frozen))
        with pytest.raises(TrainerSuperseded):
            self._loop_runs(woken.die_in_commit(True) if act == "die_in_commit" else getattr(woken, act)())

    # ------------------------------------------------------------------- what the synchronizer and the server suffer

    @rule(publishes=st.booleans())
    def the_synchronizer_dies_after_recording_a_batch(self, publishes: bool) -> None:
        self._loop_runs(self.synchronizer.release(dies_before_publishing=not publishes))
        self._succeed()

    @rule()
    def the_synchronizer_freezes_and_another_leads(self) -> None:
        self.stale.append(self.synchronizer)
        self._succeed()

    @precondition(lambda self: self.stale)
    @rule(which=WHICH)
    def a_frozen_synchronizer_wakes(self, which: int) -> None:
        with pytest.raises(SynchronizerSuperseded):
            self._loop_runs(self.stale.pop(which % len(self.stale)).release())

    @rule()
    def lost_tasks_are_looked_for(self) -> None:
        self._loop_runs(self.trainer.read())
        self._loop_runs(self.synchronizer.recover())

    @rule()
    def the_server_is_killed_and_started_again(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self._loop_runs(self._until_server_is_back())

    async def _until_server_is_back(self) -> None:
        while self.server.is_running:
            await asyncio.sleep(0.002)
        await self.server.start()

    def _succeed(self) -> None:
        self.term += 1
        successor = SteppedSynchronizer(self.config, self.buses[1], self.term)
        self.synchronizer = self._loop_runs(successor.take_over())

    # --------------------------------------------------------------------------------------------------- how it ends

    async def released(self) -> int:
        return int((await self.reader.value("release", "release_progress") or {}).get("released", 0))

    def teardown(self) -> None:
        if not hasattr(self, "trainer"):
            return
        try:
            self._loop_runs(self._end())
        finally:
            self._loop_runs(self._close())
            self._runner.close()
            self._folder.cleanup()

    async def _end(self) -> None:
        """Nothing more happens to the run: it goes on to its end."""
        deadline = time.monotonic() + PATIENCE_S  # a server that was killed may forget that a task was handed back
        while not (self.trainer.is_through and await self.synchronizer.is_done()) and time.monotonic() < deadline:
            await self._go_on()
            await self.synchronizer.recover()
        assert self.trainer.is_through, f"hung at step {self.trainer.step} with {await self.released()} released"
        await self.reader.catch_up()
        await self.trainer.save()
        observed = await self.reader.finish(self.config.run_dir)
        bound = staleness_bound(pace_of(self.config))
        most_tokens, refill = self.config.max_model_len or 0, REFILL_BATCHES
        terms = Terms(self.config.fresh_batch_size, bound, most_tokens, LEAST_REWARD, refill)
        if self.reuses:
            terms = replace(terms, whole_batch_size=WHOLE_BATCH, most_uses=MOST_USES, capacity=CAPACITY)
        assert faults(observed, terms) == []
        assert observed.ledger["step"] == STEPS
        assert observed.release["released"] <= STEPS * BATCH * (1 + refill) + STEPS

    async def _go_on(self) -> None:
        await self.synchronizer.release()
        await self.explorer.pull(4)
        while self.explorer.hands:
            await self.explorer.answer(0, self.weights)
        await self.trainer.read()
        while await self.trainer.train():
            pass

    async def _close(self) -> None:
        await self.reader.stop()
        for bus in self.buses:
            await bus.close()
        await self.server.stop()


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("reuses", [False, True], ids=["once", "with_reuse"])
def test_whatever_happens_in_whatever_order_each_task_has_one_fate(config, reuses) -> None:
    Histories.base, Histories.reuses = config, reuses
    examples = int(os.environ.get("TRINITY_HISTORIES", "8"))
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            derandomize="TRINITY_HISTORIES" not in os.environ,
            database=None,
            deadline=None,
            print_blob=True,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
