"""The shell of a coordinator: runs machines over the partitions of an internal topic.

One machine for each partition that this broker leads. `submit` is the whole cycle: decide, append, apply, wait for the
commit, answer. Everything runs on the loop, so decisions of one machine never overlap; a machine whose append failed
has changed nothing, and whoever asked gets the error. `call` is the same for a coroutine.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic

from headrace.broker.coordinators.answers import AnswerOnCommit, as_answer, of_coordinator, settle
from headrace.broker.coordinators.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from headrace.broker.coordinators.replay import Replay
from headrace.broker.coordinators.shard import AnyMachine, Queued, Shard, Waiter
from headrace.broker.partition import Partition
from headrace.core.coordinator import Answer, Decision, LogRecord, Moment, Producer, Ticket, merged
from headrace.core.java_hash import partition_for
from headrace.model.errors import HeadraceError, MessageTooLarge, NotLeader
from headrace.records.builder import NewRecord, build_batch

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

Decide = Callable[[AnyMachine, Ticket, Moment], Decision[Any]]

# Requests of one turn of the loop that share an append: more would save nothing, and hold up those behind them.
QUEUE_MAX = 256
TICKET_PARTITION_BITS = 16  # no topic has more partitions than that


class CoordinatorRuntime(Generic[AnyMachine]):
    """All machines of one kind, over the partitions of one internal topic."""

    def __init__(self, broker: "Broker", topic: str, new_machine: Callable[[], AnyMachine]) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._topic = topic
        self._new_machine = new_machine
        self._shards: dict[int, Shard[AnyMachine]] = {}
        self._tickets = count(1)
        self._waiting: dict[Ticket, Waiter] = {}
        self._queued: list[Shard[AnyMachine]] = []  # that have something in their queues
        self._committed: list[Answer] = []  # to be told at the end of this turn
        self._loads: set[asyncio.Task[None]] = set()
        # Each takes a slice of the loop; fifty slices in one turn would hold up everybody else.
        self._one_load_at_a_time = asyncio.Lock()

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

    def submit(self, name: str, decide: "Decide[AnyMachine]", waiter: Waiter) -> Ticket:
        """Let the machine of `name` decide; the waiter gets the reply to our ticket, whoever's decision brings it."""
        shard = self.shard_for(name)
        if shard.queue:
            self._carry_out_queue(shard)
        ticket = self._ticket(shard)
        self._waiting[ticket] = waiter
        try:
            self.carry_out(shard, decide(shard.machine, ticket, self.now()))
        except BaseException as error:
            self._waiting.pop(ticket, None)
            if isinstance(error, NotLeader):
                raise of_coordinator(error) from error
            raise
        return ticket

    def _ticket(self, shard: Shard[AnyMachine]) -> Ticket:
        """A new one, which tells its partition: who waits for a machine can be found when the machine goes."""
        return next(self._tickets) << TICKET_PARTITION_BITS | shard.partition.index

    def submit_together(self, name: str, decide: "Decide[AnyMachine]", waiter: Waiter) -> None:
        """The same, for decisions that see nothing of one another's facts: those of one turn share one append.

        Everybody else's decision about the machine waits for them, so it does see their facts.
        """
        shard = self.shard_for(name)
        shard.queue.append(Queued(decide, waiter))
        if len(shard.queue) >= QUEUE_MAX:
            self._carry_out_queue(shard)
        elif len(shard.queue) == 1:
            if not self._queued:
                asyncio.get_running_loop().call_soon(self._carry_out_queues)
            self._queued.append(shard)

    async def call(self, name: str, decide: "Decide[AnyMachine]") -> Any:
        """`submit`, for a coroutine: returns the reply, or raises it if it is an error."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ticket = self.submit(name, decide, partial(settle, future))
        try:
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def _carry_out_queues(self) -> None:
        queued, self._queued = self._queued, []
        for shard in queued:
            if shard.queue:
                self._carry_out_queue(shard)

    def _carry_out_queue(self, shard: Shard[AnyMachine]) -> None:
        now = self.now()
        decisions: list[Decision[Any]] = []
        refused: list[tuple[Waiter, HeadraceError]] = []
        for decide, waiter in shard.taken_queue():
            ticket = self._ticket(shard)
            try:
                decision = decide(shard.machine, ticket, now)
            except Exception as error:
                refused.append((waiter, as_answer(error, shard)))
                continue
            self._waiting[ticket] = waiter
            decisions.append(decision)
        self._carry_out_together(shard, decisions)
        # Last, because whoever is told may ask again at once, and must find what was asked before done.
        for waiter, reason in refused:
            waiter(reason)

    def _carry_out_together(self, shard: Shard[AnyMachine], decisions: list[Decision[Any]]) -> None:
        try:
            self.carry_out(shard, merged(decisions))
        except Exception as error:
            if isinstance(error, MessageTooLarge) and len(decisions) > 1:
                for decision in decisions:
                    self._carry_out_together(shard, [decision])
                return
            reason = as_answer(error, shard)
            for decision in decisions:
                self.fail(decision.answers, reason)

    def decide(self, shard: Shard[AnyMachine], decide: Callable[[AnyMachine], Decision[Any]]) -> None:
        """Let a machine decide that nobody has asked: its time has come, or the world has changed."""
        if shard.queue:
            self._carry_out_queue(shard)
        self.carry_out(shard, decide(shard.machine))

    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_ms())

    def carry_out(self, shard: Shard[AnyMachine], decision: Decision[Any]) -> None:
        """Append, apply, set the timers, and answer once everything that the decision has seen is committed."""
        partition = shard.partition
        if decision.facts:
            self._write_down(shard, decision)
        for name, due_ms in decision.timers:
            shard.timers.set(name, due_ms)
        if not decision.answers:
            return
        # Also a decision without facts waits: what it read may not be committed yet, and could still be lost.
        if partition.log_end_offset <= partition.high_watermark:
            self._answer(decision.answers)
        else:
            partition.wait_for_commit(partition.log_end_offset, AnswerOnCommit(self, decision.answers))

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
        try:
            return shard.partition.append_internal(memoryview(bytearray(batch)), now_ms)
        except NotLeader as error:
            raise NotCoordinator(str(error)) from error

    def committed(self, answers: Sequence[Answer]) -> None:
        """What these answers rest on is committed. They are given when the append that brought this is over.

        Whoever is told may ask again at once, and the machine has yet to apply what that append has written.
        """
        if not self._committed:
            asyncio.get_running_loop().call_soon(self._answer_committed)
        self._committed += answers

    def _answer_committed(self) -> None:
        answers, self._committed = self._committed, []
        self._answer(answers)

    def _answer(self, answers: Iterable[Answer]) -> None:
        for ticket, reply in answers:
            waiter = self._waiting.pop(ticket, None)
            if waiter is not None:
                waiter(reply)

    def fail(self, answers: Iterable[Answer], error: HeadraceError) -> None:
        told = of_coordinator(error)
        self._answer([Answer(ticket, told) for ticket, _ in answers])

    def _timer_is_due(self, shard: Shard[AnyMachine], name: str) -> None:
        try:
            self.decide(shard, lambda machine: machine.expire(name, self.now()))
        except HeadraceError as error:
            log.error("%s: %s could not be carried out: %s", shard.partition, name, error)

    # Leadership

    def lead(self, partition: Partition) -> None:
        """This broker leads the partition now: read its log, then serve."""
        shard = Shard(self._new_machine(), partition, self._clock, self._timer_is_due)
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
            shard.timers.cancel()
            gone = NotCoordinator(f"this broker does not lead {shard.partition} any more")
            for _, waiter in shard.taken_queue():
                waiter(gone)
            mask = (1 << TICKET_PARTITION_BITS) - 1
            self.fail([Answer(ticket, None) for ticket in self._waiting if ticket & mask == index], gone)

    async def _load(self, shard: Shard[AnyMachine]) -> None:
        try:
            async with self._one_load_at_a_time:
                await Replay(shard.machine, shard.partition).run()
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

    async def close(self) -> None:
        for task in list(self._loads):
            task.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)
        self.fail([Answer(ticket, None) for ticket in self._waiting], CoordinatorNotAvailable("the broker is stopping"))
        for index in list(self._shards):
            self.resign(index)
