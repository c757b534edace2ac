"""The shell of a coordinator: decide, append, apply, answer, in this order and no other."""

import asyncio
from typing import Any, NamedTuple, cast

import pytest

from headrace.broker.coordinator.context import CoordinatorContext
from headrace.broker.coordinator.errors import CoordinatorNotAvailable, NotCoordinator
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.purgatory import CommitWatcher
from headrace.broker.server import Broker
from headrace.config.values import LogConfig
from headrace.core.coordinator import Answer, CoordinatorRecord, CoordinatorTime, Decision, Producer, Timer
from headrace.model.errors import DiskFull, HeadraceError, MessageTooLarge, RequestError, StorageError
from headrace.records.batch import parse_header
from headrace.records.record import decode_records
from headrace.testing.simulation.clock import SimClock


class Noted(NamedTuple):
    text: str
    is_written: bool = True


class Notebook:
    """The simplest machine: keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int]] = []
        self.expired: list[str] = []

    def encode(self, fact: Noted) -> CoordinatorRecord | None:
        return CoordinatorRecord(b"k", fact.text.encode()) if fact.is_written else None

    def apply(self, fact: Noted, offset: int) -> None:
        self.notes.append((fact.text, offset))

    def replay(self, record: CoordinatorRecord, offset: int) -> None:
        self.notes.append(((record.value or b"").decode(), offset))

    def loaded(self, now_ms: CoordinatorTime) -> Decision[Noted]:
        return Decision()

    def expire(self, timer: str, now_ms: CoordinatorTime) -> Decision[Noted]:
        self.expired.append(timer)
        return Decision()


class FakeLog:
    config = LogConfig(max_message_bytes=1_000)


class FakePartition:
    """A partition whose commits a test decides about."""

    def __init__(self) -> None:
        self.index = 0
        self.log = FakeLog()
        self.batches: list[bytes] = []
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self.failure: StorageError | None = None
        self._waiters: list[tuple[int, CommitWatcher]] = []

    def append_internal(self, batch: memoryview, now_ms: int, **more: Any) -> int:
        if self.failure is not None:
            raise self.failure
        self.batches.append(bytes(batch))
        self.log_end_offset += parse_header(batch).record_count
        return self.log_end_offset

    def wait_for_commit(self, offset: int, waiter: CommitWatcher) -> None:
        self._waiters.append((offset, waiter))

    def commit(self) -> None:
        self.high_watermark = self.log_end_offset
        for _, waiter in self._waiters:
            waiter.committed()
        self._waiters.clear()

    def fail(self, error: StorageError) -> None:
        for _, waiter in self._waiters:
            waiter.failed(cast(Partition, self), error)


class FakeBroker:
    def __init__(self) -> None:
        self.clock = SimClock()


class Office:
    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.partition = FakePartition()
        self.runtime = CoordinatorRuntime[Notebook](cast(Broker, self.broker), "__notes", Notebook)
        self.runtime.lead(cast(Partition, self.partition))
        self.runtime.partition_of = lambda name: 0  # type: ignore[method-assign]

    @property
    def shard(self) -> CoordinatorContext[Notebook]:
        return self.runtime.shard(0)

    @property
    def notes(self) -> list[tuple[str, int]]:
        return self.shard.machine.notes

    def note_together(self, *facts: Noted, error: Exception | None = None) -> list[object]:
        """The replies, once they come."""
        replies: list[object] = []

        def decide(machine: Notebook, ticket: int, now: CoordinatorTime) -> Decision[Noted]:
            if error is not None:
                raise error
            return Decision(answers=(Answer(ticket, len(machine.notes)),), facts=facts)

        self.runtime.schedule_batched_write("x", decide, replies.append)
        return replies

    def note(self, *facts: Noted, reply: object = "done", producer: Producer | None = None) -> "asyncio.Task[Any]":
        return asyncio.create_task(
            self.runtime.call(
                "x",
                lambda machine, ticket, now: Decision(answers=(Answer(ticket, reply),), facts=facts, producer=producer),
            )
        )


@pytest.fixture
def office() -> Office:
    return Office()


async def soon() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_answer_waits_until_its_facts_are_committed(office: Office) -> None:
    asked = office.note(Noted("a"), Noted("b"))
    await soon()
    assert (office.notes, asked.done()) == ([("a", 0), ("b", 1)], False)
    office.partition.commit()
    assert await asked == "done"


async def test_an_answer_without_facts_waits_for_what_it_may_have_seen(office: Office) -> None:
    first, second = office.note(Noted("a")), office.note()
    await soon()
    assert not second.done()
    office.partition.commit()
    assert [await first, await second] == ["done", "done"]


async def test_facts_that_are_not_written_down_are_applied_in_their_place(office: Office) -> None:
    asked = office.note(Noted("a"), Noted("b", is_written=False), Noted("c"))
    await soon()
    assert office.notes == [("a", 0), ("b", 1), ("c", 1)]
    (batch,) = office.partition.batches
    assert [record.value for record in decode_records(batch)] == [b"a", b"c"]
    office.partition.commit()
    await asked


async def test_an_append_that_fails_has_changed_nothing(office: Office) -> None:
    office.partition.failure = DiskFull("no room")
    with pytest.raises(DiskFull):
        await office.note(Noted("a"))
    assert office.notes == []


async def test_a_batch_that_no_reader_could_take_is_refused(office: Office) -> None:
    with pytest.raises(MessageTooLarge):
        await office.note(Noted("x" * 1_000))
    assert (office.notes, office.partition.batches) == ([], [])


async def test_facts_of_a_transaction_are_written_in_it(office: Office) -> None:
    asked = office.note(Noted("a"), producer=Producer(7, 3))
    await soon()
    header = parse_header(office.partition.batches[0])
    assert (header.is_transactional, header.producer_id, header.producer_epoch) == (True, 7, 3)
    office.partition.commit()
    await asked


async def test_an_error_for_an_answer_is_raised_where_it_is_awaited(office: Office) -> None:
    with pytest.raises(RequestError):
        await office.note(reply=RequestError("no"))


async def test_a_commit_that_fails_reaches_whoever_waits(office: Office) -> None:
    asked = office.note(Noted("a"))
    await soon()
    office.partition.fail(StorageError("the disk is gone"))
    with pytest.raises(StorageError):
        await asked


async def test_a_timer_of_the_same_name_replaces_the_one_before(office: Office) -> None:
    office.runtime.carry_out(office.shard, Decision(timers=[Timer("t", 0), Timer("u", 0), Timer("t", None)]))
    await asyncio.sleep(0.01)
    assert office.shard.machine.expired == ["u"]


async def test_timers_and_machines_go_with_the_leadership(office: Office) -> None:
    machine = office.shard.machine
    office.runtime.carry_out(office.shard, Decision(timers=[Timer("t", 0)]))
    office.runtime.resign(0)
    await asyncio.sleep(0.01)
    assert machine.expired == []
    with pytest.raises(NotCoordinator):
        await office.note(Noted("a"))


async def test_whoever_waits_is_told_when_the_broker_stops(office: Office) -> None:
    asked = office.note(Noted("a"))
    await soon()
    await office.runtime.close()
    with pytest.raises(CoordinatorNotAvailable):
        await asked


async def test_requests_of_one_turn_share_one_batch_and_each_gets_its_answer(office: Office) -> None:
    replies = [office.note_together(Noted("a")), office.note_together(Noted("b"), Noted("c"))]
    assert office.partition.batches == []
    await soon()
    assert (len(office.partition.batches), office.notes) == (1, [("a", 0), ("b", 1), ("c", 2)])
    assert replies == [[], []], "they wait until it is committed"
    office.partition.commit()
    await soon()
    assert replies == [[0], [0]], "each was decided about before any was applied"


async def test_whoever_comes_after_a_queue_sees_what_it_has_done(office: Office) -> None:
    together = office.note_together(Noted("a"))
    seen: list[object] = []
    office.runtime.submit(
        "x", lambda machine, ticket, now: Decision(answers=(Answer(ticket, list(machine.notes)),)), seen.append
    )
    office.partition.commit()
    await soon()
    assert (together, seen) == ([0], [[("a", 0)]])


async def test_a_timer_that_is_due_waits_for_the_queue(office: Office) -> None:
    office.note_together(Noted("a"))
    office.runtime.decide(office.shard, lambda machine: Decision(facts=[Noted(f"after {len(machine.notes)}")]))
    assert office.notes == [("a", 0), ("after 1", 1)]


async def test_one_refusal_in_a_queue_spoils_nothing_for_the_others(office: Office) -> None:
    refused, taken = office.note_together(error=RequestError("no")), office.note_together(Noted("a"))
    broken = office.note_together(error=ZeroDivisionError())
    await soon()
    office.partition.commit()
    await soon()
    assert (taken, office.notes) == ([0], [("a", 0)])
    assert [type(one) for one in (*refused, *broken)] == [RequestError, HeadraceError]


async def test_a_queue_that_cannot_be_written_has_changed_nothing(office: Office) -> None:
    office.partition.failure = DiskFull("no room")
    replies = [office.note_together(Noted("a")), office.note_together(Noted("b"))]
    await soon()
    assert (office.notes, [type(one) for one in (*replies[0], *replies[1])]) == ([], [DiskFull, DiskFull])


async def test_a_queue_too_large_for_one_batch_is_written_in_several(office: Office) -> None:
    replies = [office.note_together(Noted(letter * 600)) for letter in "ab"]
    too_large = office.note_together(Noted("c" * 2_000))
    await soon()
    office.partition.commit()
    await soon()
    assert (len(office.partition.batches), replies) == (2, [[0], [0]])
    assert [type(one) for one in too_large] == [MessageTooLarge]


async def test_a_queue_goes_with_the_leadership(office: Office) -> None:
    replies = office.note_together(Noted("a"))
    office.runtime.resign(0)
    await soon()
    assert [type(one) for one in replies] == [NotCoordinator]
    assert office.partition.batches == []


async def test_whoever_is_told_of_a_commit_finds_everything_applied(office: Office) -> None:
    """Where an append moves the watermark by itself, those who waited must not ask between it and its `apply`."""
    first = office.note_together(Noted("a"))
    await soon()
    seen: list[int] = []
    append = office.partition.append_internal

    def append_and_commit(batch: memoryview, now_ms: int, **more: Any) -> int:
        end = append(batch, now_ms, **more)
        office.partition.commit()
        seen.append(len(first))
        return end

    office.partition.append_internal = append_and_commit  # type: ignore[method-assign]
    office.runtime.decide(office.shard, lambda machine: Decision(facts=[Noted("b")]))
    assert (seen, first) == ([0], []), "told only after the append is over"
    await soon()
    assert (first, office.notes) == ([0], [("a", 0), ("b", 1)])
