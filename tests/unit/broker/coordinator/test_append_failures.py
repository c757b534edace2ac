"""Coordinators whose log or machine fails for a while: nothing hangs, and memory never differs from the log."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from headrace.broker.coordinator.errors import CoordinatorLoading
from headrace.broker.coordinator.loader import CoordinatorLoader
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.core.coordinator import Answer, CoordinatorTime, Decision, Timer
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.model import GroupCoordinatorConfig
from headrace.core.group.offset_manager import OffsetCommitted
from headrace.core.group.records import OffsetAndMetadata, OffsetKey
from headrace.core.transaction.coordinator_shard import TransactionConfig, TransactionCoordinatorShard
from headrace.core.transaction.metadata import TransactionState
from headrace.model.errors import DiskFull
from headrace.model.ids import TopicPartition
from headrace.records.batch import parse_header
from headrace.testing.simulation.loop import SimLoop, SimLoopClock
from tests.unit.broker.coordinator.test_runtime import FakePartition, Notebook, Noted, Office, soon

CONFIG = TransactionConfig(timeout_ms_max=900_000, id_expiration_ms=1_000, id_expiration_check_ms=2_000)


class SimBroker:
    def __init__(self, loop: SimLoop) -> None:
        self.clock = SimLoopClock(loop, 1_700_000_000_000)


def run(loop: SimLoop, main: Coroutine[Any, Any, None]) -> None:
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


class Alarm(Notebook):
    """Writes a note when its timer is due."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    def expire(self, timer: str, now_ms: CoordinatorTime) -> Decision[Noted]:
        self.expired.append(timer)
        if self.error is not None:
            raise self.error
        return Decision(facts=[Noted(timer)])


class Clockwork:
    def __init__(self, loop: SimLoop, new_machine: Any) -> None:
        self.partition = FakePartition()
        self.runtime = CoordinatorRuntime[Any](cast(Broker, SimBroker(loop)), "__notes", new_machine)
        self.runtime.partition_of = lambda name: 0  # type: ignore[method-assign]
        self.runtime.lead(cast(Partition, self.partition))
        self.shard = self.runtime.shard(0)
        self.runtime.carry_out(self.shard, self.shard.machine.loaded(self.runtime.now()))


def test_failed_timer_runs_again_after_appends_recover() -> None:
    loop = SimLoop()

    async def main() -> None:
        works = Clockwork(loop, Alarm)
        works.partition.failure = DiskFull("no space")
        works.runtime.carry_out(works.shard, Decision(timers=[Timer("t", 10)]))
        await asyncio.sleep(2.5)
        assert works.shard.machine.notes == []
        works.partition.failure = None
        await asyncio.sleep(5)
        assert works.shard.machine.notes == [("t", 0)]
        attempts = len(works.shard.machine.expired)
        await asyncio.sleep(60)
        assert len(works.shard.machine.expired) == attempts, "a timer that succeeded is not due again"

    run(loop, main())


def test_failed_timer_retries_with_bounded_backoff() -> None:
    loop = SimLoop()

    async def main() -> None:
        works = Clockwork(loop, Alarm)
        works.shard.machine.error = ZeroDivisionError()
        works.runtime.carry_out(works.shard, Decision(timers=[Timer("t", 0)]))
        await asyncio.sleep(100)
        assert 20 <= len(works.shard.machine.expired) <= 30
        works.runtime.resign(0)
        attempts = len(works.shard.machine.expired)
        await asyncio.sleep(100)
        assert len(works.shard.machine.expired) == attempts, "a machine that is gone has no timers"

    run(loop, main())


def test_timer_moved_while_retrying_runs_at_its_new_time() -> None:
    loop = SimLoop()

    async def main() -> None:
        works = Clockwork(loop, Alarm)
        works.partition.failure = DiskFull("no space")
        works.runtime.carry_out(works.shard, Decision(timers=[Timer("t", 0)]))
        await asyncio.sleep(0.01)
        works.partition.failure = None
        works.runtime.carry_out(works.shard, Decision(timers=[Timer("t", 10_000)]))
        await asyncio.sleep(9)
        assert works.shard.machine.notes == []
        await asyncio.sleep(2)
        assert works.shard.machine.notes == [("t", 0)]

    run(loop, main())


def test_transaction_timeout_during_failed_appends_aborts_later() -> None:
    loop = SimLoop()

    async def main() -> None:
        works = Clockwork(loop, lambda: TransactionCoordinatorShard(CONFIG))
        machine, runtime = works.shard.machine, works.runtime
        runtime.carry_out(works.shard, machine.init_producer_id(1, "tx", 1_000, None, fresh_id=7, now_ms=runtime.now()))
        owner = machine.transactions["tx"].owner
        places = [TopicPartition("t", 0)]
        added = machine.add_partitions(1, "tx", owner, places, client_version=2, now_ms=runtime.now())
        runtime.carry_out(works.shard, added)
        works.partition.failure = DiskFull("no space")
        await asyncio.sleep(3.5)
        assert machine.transactions["tx"].state in (TransactionState.ONGOING,)
        works.partition.failure = None
        await asyncio.sleep(5)
        assert machine.transactions["tx"].state is TransactionState.PREPARE_ABORT

    run(loop, main())


def test_expired_ids_are_removed_after_failed_appends() -> None:
    loop = SimLoop()

    async def main() -> None:
        works = Clockwork(loop, lambda: TransactionCoordinatorShard(CONFIG))
        machine, runtime = works.shard.machine, works.runtime
        runtime.carry_out(works.shard, machine.init_producer_id(1, "tx", 1_000, None, fresh_id=7, now_ms=runtime.now()))
        works.partition.failure = DiskFull("no space")
        await asyncio.sleep(4)
        works.partition.failure = None
        await asyncio.sleep(8)
        assert machine.transactions == {}

    run(loop, main())


# Responses and applying


@pytest.fixture
def office() -> Office:
    return Office()


async def test_response_that_raises_does_not_lose_the_others(office: Office) -> None:
    told: list[object] = []

    def broken(reply: object) -> None:
        raise ZeroDivisionError

    for waiter in (broken, told.append):
        office.runtime.schedule_batched_write(
            "x", lambda machine, ticket, now: Decision(answers=(Answer(ticket, "done"),), facts=[Noted("a")]), waiter
        )
    await soon()
    office.partition.commit()
    await soon()
    assert told == ["done"]


async def test_failed_apply_reloads_the_partition_from_its_log(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    async def replay(self: CoordinatorLoader) -> None:
        for offset, batch in enumerate(cast(FakePartition, self._partition).batches):
            assert parse_header(batch).record_count == 1
            self._machine.apply(Noted("read"), offset)

    monkeypatch.setattr(CoordinatorLoader, "run", replay)
    stale = office.shard.machine
    waiting = office.note(Noted("a"))
    await soon()

    def apply(fact: Noted, offset: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(stale, "apply", apply)
    queued = office.note_together(Noted("c"))
    with pytest.raises(CoordinatorLoading):
        office.runtime.decide(office.shard, lambda machine: Decision(facts=[Noted("b")]))
    with pytest.raises(CoordinatorLoading):
        await office.note(Noted("d"))
    await soon()
    await soon()
    assert [type(one) for one in queued] == [CoordinatorLoading]
    with pytest.raises(Exception, match="any more"):
        await waiting
    assert office.shard.machine is not stale
    assert len(office.notes) == len(office.partition.batches), "everything in the log is in the new machine"


# Decisions larger than a batch


async def test_divisible_decision_is_written_in_several_batches(office: Office) -> None:
    facts = [Noted("x" * 90) for _ in range(40)]
    office.runtime.carry_out(office.shard, Decision(facts=facts, is_divisible=True))
    assert len(office.notes) == 40
    assert [offset for _, offset in office.notes] == list(range(40))
    sizes = [len(batch) for batch in office.partition.batches]
    assert len(sizes) > 1
    assert max(sizes) <= 1_000


async def test_divisible_decision_that_fails_midway_applies_what_it_wrote(office: Office) -> None:
    append = office.partition.append_internal

    def append_two(batch: memoryview, now_ms: int, **more: Any) -> int:
        if len(office.partition.batches) == 2:
            raise DiskFull("no space")
        return append(batch, now_ms, **more)

    office.partition.append_internal = append_two  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        office.runtime.carry_out(office.shard, Decision(facts=[Noted("x" * 90)] * 40, is_divisible=True))
    assert len(office.notes) == office.partition.log_end_offset


def committed_offsets(count: int) -> list[OffsetCommitted]:
    return [
        OffsetCommitted(OffsetKey("g", TopicPartition("t", index)), OffsetAndMetadata(index, -1, "", 1, -1))
        for index in range(count)
    ]


@pytest.mark.parametrize("how", ["topic deleted", "expired", "group deleted", "offsets deleted"])
def test_tombstones_larger_than_a_batch_are_all_written(how: str) -> None:
    loop = SimLoop()

    async def main() -> None:
        limits = GroupCoordinatorConfig(
            session_timeout_min_ms=1,
            session_timeout_max_ms=1,
            initial_delay_ms=0,
            members_max=1,
            offset_metadata_bytes_max=0,
            offsets_retention_ms=1,
        )
        works = Clockwork(loop, lambda: GroupCoordinatorShard(limits))
        runtime, machine = works.runtime, works.shard.machine
        facts = committed_offsets(200)
        runtime.carry_out(works.shard, Decision(facts=facts, is_divisible=True))
        works.partition.batches.clear()
        decide = {
            "topic deleted": lambda machine: machine.topic_deleted("t"),
            "expired": lambda machine: machine.expire_offsets(runtime.now()),
            "group deleted": lambda machine: machine.delete("g", 1),
            "offsets deleted": lambda machine: machine.forget_offsets("g", [fact.key.place for fact in facts], 1),
        }[how]
        runtime.decide(works.shard, decide)
        assert not machine.offsets.holds("g")
        assert sum(parse_header(batch).record_count for batch in works.partition.batches) == 200
        assert len(works.partition.batches) > 1

    run(loop, main())
