"""Coordinator runtime: runs state machines over the partitions of an internal topic that this broker leads.

`submit` runs the whole cycle: decide, append, apply, wait for the commit, respond. `call` is the same for a
coroutine. Runs on the event loop, so decisions of one state machine never overlap. If the append fails, the state
machine is unchanged and the request gets the error.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic

from headrace.broker.coordinator.commit_callbacks import (
    CommitCallback,
    as_answer,
    expire,
    respond,
    settle,
    to_coordinator_error,
)
from headrace.broker.coordinator.context import AnyMachine, CoordinatorContext, QueuedWrite, Waiter
from headrace.broker.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from headrace.broker.coordinator.loader import CoordinatorLoader
from headrace.broker.coordinator.record_batches import in_batches
from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import (
    Answer,
    CoordinatorRecord,
    CoordinatorTime,
    Decision,
    Producer,
    RequestId,
    merged,
    partition_for,
)
from headrace.model.errors import HeadraceError, MessageTooLarge, NotLeader
from headrace.records.builder import NewRecord, build_batch

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

Decide = Callable[[AnyMachine, RequestId, CoordinatorTime], Decision[Any]]

# Requests of one event-loop iteration that share an append. More would save nothing and delay the requests behind them.
QUEUE_MAX = 256
# Backoff for setting the timers of a state machine that was just loaded: its log may reject appends for a while.
LOADED_RETRY_S = 0.1
LOADED_RETRY_S_MAX = 5.0
# Delay before a partition whose replay failed is replayed into a new state machine: each attempt may read the whole
# log.
REPLAY_RETRY_S = 5.0
# How often waits for a commit are checked while there are any. A timeout is late by at most this long.
EXPIRY_CHECK_MS = 250
TICKET_PARTITION_BITS = 16  # no topic has more partitions


class CoordinatorRuntime(Generic[AnyMachine]):
    """State machines of one kind, one for each partition of an internal topic that this broker leads."""

    def __init__(
        self,
        broker: "Broker",
        topic: str,
        new_machine: Callable[[], AnyMachine],
        *,
        commit_timeout_ms: int | None = None,
        skips_corruption: bool = False,
    ) -> None:
        """A request fails with COORDINATOR_NOT_AVAILABLE after `commit_timeout_ms` without a commit.

        With `skips_corruption`, a state machine is loaded without the records that no replica can read any more.
        """
        self._broker = broker
        self._commit_timeout_ms = commit_timeout_ms
        self._skips_corruption = skips_corruption
        self._expiry: asyncio.TimerHandle | None = None  # set while requests wait for a commit
        self._clock = broker.clock
        self._topic = topic
        self._new_machine = new_machine
        self._shards: dict[int, CoordinatorContext[AnyMachine]] = {}
        self._tickets = count(1)
        self._waiting: dict[RequestId, Waiter] = {}
        self._queued: list[CoordinatorContext[AnyMachine]] = []  # with queued writes
        self._committed: list[Answer] = []  # sent in the next event-loop iteration
        self._loads: set[asyncio.Task[None]] = set()
        # Each load takes a slice of an event-loop iteration. Fifty loads at once would delay all requests.
        self._one_load_at_a_time = asyncio.Lock()

    # Lookup

    def partition_of(self, name: str) -> int:
        topic = self._broker.image.topics.get(self._topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self._topic} does not exist yet")
        return partition_for(name, len(topic.partitions))

    def shard_for(self, name: str) -> CoordinatorContext[AnyMachine]:
        return self.shard(self.partition_of(name))

    def shard(self, index: int) -> CoordinatorContext[AnyMachine]:
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"this broker does not lead {self._topic}-{index}")
        if not shard.is_loaded:
            raise CoordinatorLoading(f"{self._topic}-{index} is being read")
        return shard

    def shards(self) -> list[CoordinatorContext[AnyMachine]]:
        """Returns every loaded partition: for requests that cover all of them."""
        return [shard for shard in self._shards.values() if shard.is_loaded]

    def led(self) -> list[CoordinatorContext[AnyMachine]]:
        """Returns every partition of this broker, including those that are loading."""
        return list(self._shards.values())

    def led_shard(self, index: int) -> CoordinatorContext[AnyMachine] | None:
        """Returns the context of one partition, also while it is loading; None if this broker does not lead it."""
        return self._shards.get(index)

    def leads(self, shard: CoordinatorContext[AnyMachine]) -> bool:
        """Returns whether the context is still the current one of its partition."""
        return self._shards.get(shard.partition.index) is shard

    def all_shards(self) -> list[CoordinatorContext[AnyMachine]]:
        """Returns every partition of this broker. Raises if one of them is loading."""
        return [self.shard(index) for index in self._shards]

    # Decide, append, respond

    def submit(self, name: str, decide: "Decide[AnyMachine]", waiter: Waiter) -> RequestId:
        """Runs a decision of the state machine of `name`. Returns a request id.

        The waiter gets the reply to this id, which a later decision may produce.
        """
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
                raise to_coordinator_error(error) from error
            raise
        return ticket

    def _ticket(self, shard: CoordinatorContext[AnyMachine]) -> RequestId:
        """Returns a new request id, which contains the partition.

        When this broker resigns, the partition's waiting requests are found by their ids.
        """
        return next(self._tickets) << TICKET_PARTITION_BITS | shard.partition.index

    def schedule_batched_write(self, name: str, decide: "Decide[AnyMachine]", waiter: Waiter) -> None:
        """As `submit`, for decisions that do not depend on each other's records.

        Those of one event-loop iteration share an append. Any other decision of the state machine runs the queued
        ones first, so it observes their records.
        """
        shard = self.shard_for(name)
        shard.queue.append(QueuedWrite(decide, waiter))
        if len(shard.queue) >= QUEUE_MAX:
            self._carry_out_queue(shard)
        elif len(shard.queue) == 1:
            if not self._queued:
                asyncio.get_running_loop().call_soon(self._carry_out_queues)
            self._queued.append(shard)

    async def call(self, name: str, decide: "Decide[AnyMachine]") -> Any:
        """`submit` for a coroutine: returns the reply, or raises it if it is an error."""
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

    def _carry_out_queue(self, shard: CoordinatorContext[AnyMachine]) -> None:
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
        # Last: a waiter may send its next request at once, which must observe the earlier requests as completed.
        for waiter, reason in refused:
            respond(waiter, reason)

    def _carry_out_together(self, shard: CoordinatorContext[AnyMachine], decisions: list[Decision[Any]]) -> None:
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

    def decide(self, shard: CoordinatorContext[AnyMachine], decide: Callable[[AnyMachine], Decision[Any]]) -> None:
        """Runs a decision without a request: a timer is due, or the metadata has changed."""
        if not shard.is_loaded:
            raise CoordinatorLoading(f"{shard.partition} is being read")
        if shard.queue:
            self._carry_out_queue(shard)
        self.carry_out(shard, decide(shard.machine))

    def now(self) -> CoordinatorTime:
        return CoordinatorTime(self._clock.monotonic_ms(), self._clock.wall_ms())

    def carry_out(self, shard: CoordinatorContext[AnyMachine], decision: Decision[Any]) -> None:
        """Appends and applies the records, sets the timers, and responds when everything that was read is committed."""
        partition = shard.partition
        if not shard.is_loaded:
            raise CoordinatorLoading(f"{partition} is being read again")
        if decision.facts:
            self._write_down(shard, decision)
        for name, due_ms in decision.timers:
            shard.timers.set(name, due_ms)
        if not decision.answers:
            return
        # A decision without records waits, too: what it read may be uncommitted and could still be lost.
        if partition.log_end_offset <= partition.high_watermark:
            self._answer(decision.answers)
        else:
            waiter = CommitCallback(self, decision.answers, self._commit_deadline_ms())
            partition.wait_for_commit(partition.log_end_offset, waiter)

    def _commit_deadline_ms(self) -> int | None:
        if self._commit_timeout_ms is None:
            return None
        if self._expiry is None:
            self._schedule_expiry(self._commit_timeout_ms)
        return self._clock.monotonic_ms() + self._commit_timeout_ms

    def _schedule_expiry(self, delay_ms: int) -> None:
        delay_s = min(delay_ms, EXPIRY_CHECK_MS) / 1000
        self._expiry = asyncio.get_running_loop().call_later(delay_s, self._expire_waits, delay_ms)

    def _expire_waits(self, delay_ms: int) -> None:
        """Fails requests whose commit has timed out.

        As in Kafka, the records may be committed later; clients retry and find them applied.
        """
        self._expiry = None
        late = CoordinatorNotAvailable(f"not committed within {self._commit_timeout_ms} ms")
        now_ms = self._clock.monotonic_ms()
        still_waiting = [expire(shard.partition, now_ms, late) for shard in list(self._shards.values())]
        # A response can trigger the next request of its connection at once, which sets the timer itself.
        if any(still_waiting) and self._expiry is None:
            self._schedule_expiry(delay_ms)

    def _write_down(self, shard: CoordinatorContext[AnyMachine], decision: Decision[Any]) -> None:
        if not decision.is_divisible:
            self._write_facts(shard, decision.facts, decision.producer)
            return
        bytes_max = shard.partition.log.config.max_message_bytes
        for facts in in_batches(decision.facts, shard.machine.encode, bytes_max):
            self._write_facts(shard, facts, decision.producer)

    def _write_facts(
        self, shard: CoordinatorContext[AnyMachine], facts: Sequence[Any], producer: Producer | None
    ) -> None:
        records = [shard.machine.encode(fact) for fact in facts]
        written = [record for record in records if record is not None]
        offset = shard.partition.log_end_offset
        if written:
            offset = self._append(shard, written, producer) - len(written)
        with self.applying(shard):
            for fact, record in zip(facts, records, strict=True):
                shard.machine.apply(fact, offset)
                offset += record is not None

    @contextmanager
    def applying(self, shard: CoordinatorContext[AnyMachine]) -> Iterator[None]:
        """Context manager for changes of a state machine that are already in its log.

        A state machine that raises here is behind its log, and its later decisions could be wrong. It makes no more
        decisions: the partition is replayed into a new state machine, and requests get COORDINATOR_LOAD_IN_PROGRESS.
        """
        try:
            yield
        except Exception as error:
            log.critical("%s: a record could not be applied; reloading the partition", shard.partition, exc_info=True)
            shard.is_loaded = False
            # Deferred: resigning responds to all requests of the partition, and the caller responds to its own.
            asyncio.get_running_loop().call_soon(self._reload, shard)
            raise CoordinatorLoading(f"{shard.partition} is being read again") from error

    def _reload(self, shard: CoordinatorContext[AnyMachine]) -> None:
        if self.leads(shard):
            self.resign(shard.partition.index)
            self.lead(shard.partition)
            self._shards[shard.partition.index].load_error = shard.load_error

    def _append(
        self, shard: CoordinatorContext[AnyMachine], records: list[CoordinatorRecord], producer: Producer | None
    ) -> int:
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
        """Called when the records behind these responses are committed.

        The responses are sent in the next event-loop iteration. Sent earlier, one could trigger the client's next
        request before the state machine has applied the appended records.
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
                respond(waiter, reply)

    def fail(self, answers: Iterable[Answer], error: HeadraceError) -> None:
        told = to_coordinator_error(error)
        self._answer([Answer(ticket, told) for ticket, _ in answers])

    def _timer_is_due(self, shard: CoordinatorContext[AnyMachine], name: str) -> None:
        self.decide(shard, lambda machine: machine.expire(name, self.now()))

    # Leadership

    def lead(self, partition: Partition) -> None:
        """Starts the coordinator of a partition that this broker leads now: loads it, then serves requests."""
        shard = CoordinatorContext(self._new_machine(), partition, self._clock, self._timer_is_due)
        self._shards[partition.index] = shard
        if partition.log_start_offset == partition.log_end_offset:
            # An empty partition needs no load, so the request that created the topic does not wait.
            shard.is_loaded = True
            return
        task = asyncio.create_task(self._load(shard))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def resign(self, index: int) -> None:
        """Drops the state machine of a partition that another broker leads, and fails the waiting requests."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.timers.cancel()
            gone = NotCoordinator(f"this broker does not lead {shard.partition} any more")
            for _, waiter in shard.taken_queue():
                respond(waiter, gone)
            mask = (1 << TICKET_PARTITION_BITS) - 1
            self.fail([Answer(ticket, None) for ticket in self._waiting if ticket & mask == index], gone)

    async def _load(self, shard: CoordinatorContext[AnyMachine]) -> None:
        try:
            async with self._one_load_at_a_time:
                # With other replicas, the records are replicated from one of them, or that replica becomes leader.
                skips_corruption = self._skips_corruption and len(shard.partition.replicas) == 1
                await CoordinatorLoader(shard.machine, shard.partition, skips_corruption=skips_corruption).run()
                await self.replayed(shard)
        except HeadraceError as error:
            shard.load_error = error
            log.critical("%s cannot be read; retrying in %g s: %s", shard.partition, REPLAY_RETRY_S, error)
            asyncio.get_running_loop().call_later(REPLAY_RETRY_S, self._reload, shard)
            return
        except Exception:
            log.exception("%s cannot be read; retrying in %g s", shard.partition, REPLAY_RETRY_S)
            asyncio.get_running_loop().call_later(REPLAY_RETRY_S, self._reload, shard)
            return
        if not self.leads(shard):
            return  # another broker leads it by now
        shard.is_loaded = True
        shard.load_error = None
        self._set_timers(shard)

    async def replayed(self, shard: CoordinatorContext[AnyMachine]) -> None:
        """Awaited after the replay, before the first decision. After an error the partition is replayed again."""

    def _set_timers(self, shard: CoordinatorContext[AnyMachine], delay_s: float = LOADED_RETRY_S) -> None:
        """Runs the first decision of a loaded state machine: without timers, members and transactions never expire."""
        if not self.leads(shard) or not shard.is_loaded:
            return
        try:
            self.decide(shard, lambda machine: machine.loaded(self.now()))
        except Exception:
            log.exception("%s: timers are not set; retrying in %g s", shard.partition, delay_s)
            next_s = min(2 * delay_s, LOADED_RETRY_S_MAX)
            asyncio.get_running_loop().call_later(delay_s, self._set_timers, shard, next_s)

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        for task in list(self._loads):
            task.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)
        self.fail([Answer(ticket, None) for ticket in self._waiting], CoordinatorNotAvailable("the broker is stopping"))
        for index in list(self._shards):
            self.resign(index)
