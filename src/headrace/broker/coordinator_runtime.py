"""The shell of a coordinator: runs machines over the partitions of an internal topic.

One machine for each partition that this broker leads. `call` is the whole cycle: decide, append, apply, wait for the
commit, answer. Everything runs on the loop, so decisions of one machine never overlap; a machine whose append failed
has changed nothing, and the caller gets the error.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.broker.partition import Partition
from headrace.broker.slices import in_slices
from headrace.core.coordinator import Decision, LogRecord, Machine, Moment, Producer, Ticket, TransactionalMachine
from headrace.core.java_hash import partition_for
from headrace.model.errors import ErrorCode, HeadraceError, MessageTooLarge, RequestError
from headrace.records.batch import BatchHeader, walk
from headrace.records.builder import NewRecord, build_batch
from headrace.records.control import read_marker
from headrace.records.record import decode_records

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

AnyMachine = TypeVar("AnyMachine", bound=Machine[Any])

# One read while replaying: large enough that reading is not what costs.
REPLAY_BYTES = 1024 * 1024


class NotCoordinator(RequestError):
    """Another broker looks after this group or transaction; the client should ask who does."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True


class CoordinatorLoading(RequestError):
    """The coordinator is still reading its log; the client should try again in a moment."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailable(RequestError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True


class Shard(Generic[AnyMachine]):
    """One machine with the partition that it lives in."""

    def __init__(self, machine: AnyMachine, partition: Partition) -> None:
        self.machine = machine
        self.partition = partition
        self.is_loaded = False
        self.timers: dict[str, asyncio.TimerHandle] = {}


class CoordinatorRuntime(Generic[AnyMachine]):
    """All machines of one kind, over the partitions of one internal topic."""

    def __init__(self, broker: "Broker", topic: str, new_machine: Callable[[], AnyMachine]) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._topic = topic
        self._new_machine = new_machine
        self._shards: dict[int, Shard[AnyMachine]] = {}
        self._tickets = count(1)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._loads: set[asyncio.Task[None]] = set()

    # Which machine

    def partition_of(self, name: str) -> int:
        topic = self._broker.image.topics.get(self._topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self._topic} does not exist yet")
        return partition_for(name, len(topic.partitions))

    def shard_for(self, name: str) -> Shard[AnyMachine]:
        return self.shard(self.partition_of(name))

    def shard(self, index: int) -> Shard[AnyMachine]:
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"this broker does not lead {self._topic}-{index}")
        if not shard.is_loaded:
            raise CoordinatorLoading(f"{self._topic}-{index} is being read")
        return shard

    def shards(self) -> list[Shard[AnyMachine]]:
        """Every machine that is ready: for requests that ask about all of them."""
        return [shard for shard in self._shards.values() if shard.is_loaded]

    def all_shards(self) -> list[Shard[AnyMachine]]:
        """The same, for whoever cannot do with a part of them."""
        return [self.shard(index) for index in self._shards]

    # The cycle

    async def call(self, name: str, decide: Callable[[AnyMachine, Ticket, Moment], Decision[Any]]) -> Any:
        """Let the machine of `name` decide; returns the reply to our ticket, whoever's decision brings it."""
        shard = self.shard_for(name)
        ticket = next(self._tickets)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            self.carry_out(shard, decide(shard.machine, ticket, self.now()))
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_ms())

    def carry_out(self, shard: Shard[AnyMachine], decision: Decision[Any]) -> None:
        """Append, apply, set the timers, and answer once everything that the decision has seen is committed."""
        partition = shard.partition
        if decision.facts:
            self._write_down(shard, decision)
        for name, due_ms in decision.timers:
            self._set_timer(shard, name, due_ms)
        if not decision.answers:
            return
        # Also a decision without facts waits: what it read may not be committed yet, and could still be lost.
        if partition.log_end_offset <= partition.high_watermark:
            self._answer(decision)
        else:
            partition.wait_for_commit(partition.log_end_offset, _AnswerOnCommit(self, decision))

    def _write_down(self, shard: Shard[AnyMachine], decision: Decision[Any]) -> None:
        records = [shard.machine.encode(fact) for fact in decision.facts]
        written = [record for record in records if record is not None]
        offset = shard.partition.log_end_offset
        if written:
            offset = self._append(shard, written, decision.producer) - len(written)
        for fact, record in zip(decision.facts, records, strict=True):
            shard.machine.apply(fact, offset)
            offset += record is not None

    def _append(self, shard: Shard[AnyMachine], records: list[LogRecord], producer: Producer | None) -> int:
        now_ms = self._clock.wall_ms()
        rows = [NewRecord(now_ms, record.key, record.value) for record in records]
        if producer is None:
            batch = build_batch(rows)
        else:
            batch = build_batch(rows, transactional=True, **producer._asdict())
        if len(batch) > shard.partition.log.config.max_message_bytes:
            raise MessageTooLarge(f"{shard.partition} takes no batch of {len(batch)} bytes")
        return shard.partition.append_internal(memoryview(bytearray(batch)), now_ms)

    def _answer(self, decision: Decision[Any]) -> None:
        for ticket, reply in decision.answers:
            future = self._waiting.get(ticket)
            if future is None or future.done():
                continue
            if isinstance(reply, HeadraceError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def fail(self, decision: Decision[Any], error: HeadraceError) -> None:
        for ticket, _ in decision.answers:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_exception(error)

    # Timers

    def _set_timer(self, shard: Shard[AnyMachine], name: str, due_ms: int | None) -> None:
        previous = shard.timers.pop(name, None)
        if previous is not None:
            previous.cancel()
        if due_ms is not None:
            delay_s = max(due_ms - self._clock.monotonic_ms(), 0) / 1000
            loop = asyncio.get_running_loop()
            shard.timers[name] = loop.call_later(delay_s, self._timer_is_due, shard, name)

    def _timer_is_due(self, shard: Shard[AnyMachine], name: str) -> None:
        shard.timers.pop(name, None)
        try:
            self.carry_out(shard, shard.machine.expire(name, self.now()))
        except HeadraceError as error:
            log.error("%s: %s could not be carried out: %s", shard.partition, name, error)

    # Leadership

    def lead(self, partition: Partition) -> None:
        """This broker leads the partition now: read its log, then serve."""
        shard = Shard(self._new_machine(), partition)
        self._shards[partition.index] = shard
        if partition.log_start_offset == partition.log_end_offset:
            shard.is_loaded = True  # nothing to read: whoever made this topic just now need not wait
            return
        task = asyncio.create_task(self._load(shard))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def resign(self, index: int) -> None:
        """Somebody else leads it: drop the machine; its log has everything."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            for timer in shard.timers.values():
                timer.cancel()

    async def _load(self, shard: Shard[AnyMachine]) -> None:
        try:
            await in_slices(self._replay(shard))
        except HeadraceError as error:
            log.critical("%s cannot be read: %s", shard.partition, error)
            return
        except Exception:
            log.exception("%s cannot be read", shard.partition)
            return
        if self._shards.get(shard.partition.index) is not shard:
            return  # somebody else leads it by now
        shard.is_loaded = True
        self.carry_out(shard, shard.machine.loaded(self.now()))

    @staticmethod
    def _replay(shard: Shard[AnyMachine]) -> Iterator[None]:
        partition = shard.partition
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            piece = partition.read(offset, REPLAY_BYTES, read_committed=False)
            if piece is None:
                return
            data = memoryview(piece.read())
            for position, header in walk(data):
                _replay_batch(shard.machine, data[position : position + header.total_bytes], header)
                offset = header.next_offset
                yield

    async def close(self) -> None:
        for task in list(self._loads):
            task.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)
        for index in list(self._shards):
            self.resign(index)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(CoordinatorNotAvailable("the broker is stopping"))


def _replay_batch(machine: Machine[Any], batch: memoryview, header: BatchHeader) -> None:
    if header.is_control:
        marker = read_marker(batch, header)
        if marker is not None and isinstance(machine, TransactionalMachine):
            machine.transaction_ended(header.producer_id, committed=marker.commits)
        return
    producer = Producer(header.producer_id, header.producer_epoch)
    for record in decode_records(batch, header):
        plain = LogRecord(record.key or b"", record.value)
        if header.is_transactional and isinstance(machine, TransactionalMachine):
            machine.replay_in_transaction(plain, record.offset, producer)
        else:
            machine.replay(plain, record.offset)


class _AnswerOnCommit:
    """Answers a decision when its facts are committed."""

    def __init__(self, runtime: CoordinatorRuntime[Any], decision: Decision[Any]) -> None:
        self._runtime = runtime
        self._decision = decision

    def committed(self) -> None:
        self._runtime._answer(self._decision)

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        self._runtime.fail(self._decision, error)
