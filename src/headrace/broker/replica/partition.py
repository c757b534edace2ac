"""A partition as its broker sees it: who leads it, what may be written to it, and when that is committed.

Speaks in leader epochs, in-sync replicas and the high watermark even where the broker is alone. The log itself, its
readers and its disk are in `local_replica.py`; what a follower does with its log is in `replication/copying.py`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.replica.local_replica import LocalReplica
from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.log_validator import ValidatedBatch, admit
from headrace.broker.replica.sent_records import SentSlices
from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.core.replica.follower_truncation import EpochEndOffset
from headrace.core.replica.leader_state import LeaderState
from headrace.model.errors import (
    CorruptLog,
    FencedLeaderEpoch,
    HeadraceError,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    PassingStorageError,
    RequestTimedOut,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from headrace.model.ids import NO_EPOCH
from headrace.records.batch import parse_header
from headrace.storage.io.file_system import Durable
from headrace.storage.log import Log
from headrace.storage.log_append import append_batches_as_leader
from headrace.storage.log_types import FileRecords, LogAppendInfo, Producer
from headrace.storage.producer.corrupt_markers import DoubtfulTransaction, doubtful_transactions
from headrace.storage.producer.producer_state_entry import COORDINATOR_EPOCH_MAX
from headrace.storage.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from headrace.records.control import EndMarker

log = logging.getLogger(__name__)

ACKS_ALL = -1


def _now(work: Callable[[], None]) -> None:
    """For a partition without a broker, which has no threads."""
    work()


class AppendResult(NamedTuple):
    base_offset: int
    next_offset: int
    append_time_ms: int
    committed: bool


class AppendedRun(NamedTuple):
    """Batches that were written in one go."""

    places: list[tuple[int, int]]  # base offset and append time of each
    next_offset: int
    committed: bool


class Term(NamedTuple):
    """Who leads, in which epoch, and whether the partition can be used: work that waited checks that it still holds."""

    leader: int
    leader_epoch: int
    failure: HeadraceError | None


class Partition(LocalReplica):
    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: Log,
        state: PartitionRegistration,
        *,
        node_id: int,
        group_commit: LogFlusher | None,
        let_go: Callable[["Partition", list[LogSegment], bool], None],
        in_background: Callable[[Callable[[], None]], None] = _now,
        high_watermark: int | None = None,
        was_clean: bool = False,
        now_ms: int = 0,
    ) -> None:
        """`high_watermark` is what was known of it at the last stop; a partition on this broker alone needs none.

        `was_clean`: the last stop was, so this broker may go on to lead in the epoch in which it led before.
        """
        super().__init__(topic, index, topic_id, log, _first_watermark(log, high_watermark, state), group_commit)
        self._node_id = node_id
        self._let_go = let_go
        self._in_background = in_background
        self.leadership: LeaderState | None = None  # there while this broker leads
        self.sent = SentSlices()  # in this leader epoch
        self.leader, self.leader_epoch, self.isr, self.elr = NO_LEADER, -1, state.isr, state.elr
        self.replicas = state.replicas
        # While this copy is damaged: the leader epoch from which on it may be cut and fetched again, see
        # broker/reporting/health_checks.py.
        self.refetch_from_epoch: int | None = None
        self._has_led_before = was_clean
        self._reused_epoch = -1
        self.follow(state, now_ms)
        self._has_led_before = False

    def follow(self, state: PartitionRegistration, now_ms: int = 0) -> None:
        """Take over what the metadata says about this partition.

        Metadata with a leader epoch below the log's was restored from an older snapshot. Nothing is led, copied or
        truncated in such an epoch: it has no leader here until a higher one is committed
        (`broker/controller/restored_metadata.py`).
        """
        if self._is_reused(state):
            self._reused_epoch = state.leader_epoch
        if state.leader_epoch < self.newest_log_epoch or state.leader_epoch == self._reused_epoch:
            state = state._replace(leader=NO_LEADER)
        is_new_term = (state.leader, state.leader_epoch) != (self.leader, self.leader_epoch)
        self.leader, self.leader_epoch, self.isr, self.elr = state.leader, state.leader_epoch, state.isr, state.elr
        self.counts = state.is_electable(self._node_id)
        self.replicas = state.replicas
        if is_new_term:
            self._start_leader_epoch(state, now_ms)
        elif self.leadership is not None:
            self.leadership.follow(state, now_ms)
            self.waiters.tell_log_start()  # a follower that left the ISR is not waited for
            self.waiters.tell_fetched()
        self._advance()

    def _is_reused(self, state: PartitionRegistration) -> bool:
        """Whether this broker is to begin an epoch of which its log has records already, of another leader.

        After a restore, an election raises the restored epoch to one that the log knows.
        """
        return (
            state.leader == self._node_id
            and state.leader_epoch == self.newest_log_epoch
            and state.leader_epoch != self.leader_epoch
            and not self._has_led_before
            and len(state.replicas) > 1
        )

    @property
    def is_behind_its_log(self) -> bool:
        """Whether the leader epoch of the metadata is one that the log knows from before a restore."""
        return self.leader_epoch < self.newest_log_epoch or self.leader_epoch == self._reused_epoch

    def doubtful_transactions(self) -> list[DoubtfulTransaction]:
        """Open transactions whose end marker may be corrupt, on the leader."""
        if self.leadership is None or self.failure is not None or self.log.producers.first_unstable_offset is None:
            return []
        return doubtful_transactions(self.log.segments, self.log.producers)

    @property
    def term(self) -> Term:
        return Term(self.leader, self.leader_epoch, self.failure)

    @property
    def newest_log_epoch(self) -> int:
        """The leader epoch of the newest batch; -1 if the log has none."""
        return self.log.epochs.latest

    def _start_leader_epoch(self, state: PartitionRegistration, now_ms: int) -> None:
        was_leading = self.leadership is not None
        self.leadership, self.sent = None, SentSlices()
        if state.leader == self._node_id:
            self._durable_end_offset = self.log.recovery_point if self.flushes_before_ack else self.log.log_end_offset
            self.leadership = LeaderState(self._node_id, state, self.log.log_end_offset, now_ms)
            self.request_flush()
        if was_leading:
            # Whoever waits is told to look for the new leader, also where that is this broker again: what the old
            # epoch promised is not known to be kept.
            news = NotLeader(f"broker {state.leader} leads {self} in epoch {state.leader_epoch}")
            self.waiters.dismiss(self, news)

    def _advance(self) -> None:
        """Move the watermark to where every replica has come that may be in sync."""
        leadership = self.leadership
        if leadership is None:
            return
        reached = leadership.watermark(self._durable_end_offset, self.log.config.min_insync_replicas)
        if reached is not None and reached > self.high_watermark:
            self.set_high_watermark(reached)

    @property
    def watermark_lags(self) -> bool:
        """True on a new leader until its high watermark reaches the start of its epoch.

        Until then an earlier leader may have committed more than this one knows of.
        """
        return self.leadership is not None and self.high_watermark < self.leadership.epoch_start

    async def settled(self) -> None:
        """Returns at once where no commit is to be expected: on a follower, below min ISR, after an election."""
        leadership = self.leadership
        if leadership is None or self.watermark_lags:
            return
        if leadership.watermark(self._durable_end_offset, self.log.config.min_insync_replicas) is not None:
            await super().settled()

    # Reading

    def read(self, offset: int, bytes_max: int, *, read_committed: bool) -> FileRecords | None:
        try:
            return super().read(offset, bytes_max, read_committed=read_committed)
        except CorruptLog as damage:
            if self.isr == (self._node_id,):
                raise  # nobody else has it: the client must know, and may read on behind the damage
            # Another replica will lead before long; the client looks for it and asks again.
            raise StorageError(f"{damage}; other replicas have it") from damage

    # Checks

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raise unless we lead, are healthy, and the client believes in the same leader epoch."""
        if self.failure is not None:
            raise self.failure
        if self.leader != self._node_id:
            raise NotLeader(f"broker {self.leader} leads {self}")
        self._check_epoch(current_leader_epoch)

    def check_follower_read(self, current_leader_epoch: int) -> None:
        """Raise unless we copy from a leader and are healthy: then consumers may read here what is committed."""
        if self.leader in (NO_LEADER, self._node_id):
            raise NotLeader(f"{self} is not a follower on this broker")
        if self.failure is not None:
            raise self.failure
        self._check_epoch(current_leader_epoch)

    def _check_epoch(self, current_leader_epoch: int) -> None:
        """The client believes in the same leader epoch, or names none."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self} is at leader epoch {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"{self} has not received leader epoch {current_leader_epoch} yet")

    # Writing

    def append(self, records: memoryview | ValidatedBatch, acks: int, now_ms: int) -> AppendResult:
        """Write a batch that a client has sent, admitting it unless that has been done."""
        self._check_takes(acks)
        admitted = records if isinstance(records, ValidatedBatch) else admit(records, self.log.config, now_ms)
        batch, header, append_time_ms = admitted
        try:
            base_offset, next_offset, duplicate = self.log.append(batch, header, self.leader_epoch, now_ms)
        except StorageError as error:
            self.append_failed(error)
            raise
        if not duplicate:
            self.appended(next_offset)
        return AppendResult(base_offset, next_offset, append_time_ms, next_offset <= self.high_watermark)

    def append_run(self, run: Sequence[memoryview], acks: int, now_ms: int) -> AppendedRun | None:
        """Write batches that one client has sent in a row; None if they are to be appended one by one."""
        self._check_takes(acks)
        config = self.log.config
        batches, headers, append_times = zip(*[admit(records, config, now_ms) for records in run], strict=True)
        try:
            placed = append_batches_as_leader(self.log, batches, headers, self.leader_epoch, now_ms)
        except StorageError as error:
            self.append_failed(error)
            raise
        if placed is None:
            return None
        next_offset = placed[-1].next_offset
        self.appended(next_offset)
        places = [(header.base_offset, time_ms) for header, time_ms in zip(placed, append_times, strict=True)]
        return AppendedRun(places, next_offset, next_offset <= self.high_watermark)

    def _check_takes(self, acks: int) -> None:
        """Raise unless this broker may write for a client who wants such acks."""
        if self.failure is not None or self.leader != self._node_id:
            self.check_leader()
        needed = self.log.config.min_insync_replicas
        if acks == ACKS_ALL and len(self.isr) < needed:
            raise NotEnoughReplicas(f"{self} has {len(self.isr)} in-sync replicas, needs {needed}")

    def append_internal(self, batch: memoryview, now_ms: int) -> int:
        """A batch of our own making, for a coordinator; returns the offset after it.

        One that names a producer is part of that producer's transaction.
        """
        header = parse_header(batch)
        append = self.log.append if header.producer_id < 0 else self.log.append_for_producer
        return self._append_ours(lambda: append(batch, header, self.leader_epoch, now_ms))

    def append_marker(
        self,
        marker: "EndMarker",
        producer: Producer,
        now_ms: int,
        *,
        uses_tv2: bool,
        newest_coordinator_epoch: int = COORDINATOR_EPOCH_MAX,
    ) -> int:
        """End a producer's transaction in this partition; returns the offset after the marker.

        `newest_coordinator_epoch` is the highest that any coordinator has; the marker's may not be above it.
        NotEnoughReplicas below min.insync.replicas: the marker could not be committed, and its retries would pile up.
        """
        self._check_takes(ACKS_ALL)
        return self._append_ours(
            lambda: self.log.append_marker(
                marker,
                producer,
                self.leader_epoch,
                now_ms,
                uses_tv2=uses_tv2,
                newest_coordinator_epoch=newest_coordinator_epoch,
            )
        )

    def _append_ours(self, append: Callable[[], LogAppendInfo]) -> int:
        self.check_leader()
        try:
            appended = append()
        except StorageError as error:
            self.append_failed(error)
            raise
        self.appended(appended.next_offset)
        return appended.next_offset

    # Failing

    def append_failed(self, error: StorageError) -> None:
        """A full disk and a lack of descriptors pass; any other error leaves the log in an unknown state."""
        if not isinstance(error, PassingStorageError):
            self.go_offline(error)

    def sync_failed(self, error: StorageError) -> None:
        if self.failure is None:
            if self.may_have_acked_unsynced:
                self._in_background(self._write_unsynced_again)
            else:
                self._cut_unsynced()
        self.go_offline(error)

    def _write_unsynced_again(self) -> None:
        try:
            self.log.write_unsynced_again()
        except StorageError as error:
            log.critical("%s: cannot write again what was not synced: %s", self, error)

    def _cut_unsynced(self) -> None:
        try:
            cut = self.log.truncate_unflushed()  # none of it was acknowledged
            self._in_background(lambda: self._sync_cut(cut))
        except StorageError as error:
            log.critical("%s: cannot truncate what was not synced: %s", self, error)

    def _sync_cut(self, cut: list[Durable]) -> None:
        """On a disk that just failed a sync, which may take long to fail another."""
        try:
            for item in cut:
                item.sync()
        except StorageError as error:
            log.critical("%s: cannot truncate what was not synced: %s", self, error)

    def go_offline(self, error: StorageError) -> None:
        """Nothing more is promised about this partition until a restart has looked at its files."""
        if self.failure is None:
            log.critical("%s goes offline: %s", self, error)
            self._end(error)

    def fence(self) -> None:
        """Another process has this broker's id. What was appended here is not known to be in its log."""
        if self.failure is None:
            self._end(NotLeader(f"Broker {self._node_id} is another process now; it may lead {self}"))

    def retire(self, *, moved: bool = False) -> None:
        """The topic has been deleted, or lives elsewhere: whoever still waits is told, and must not mix these up.

        What waited for a commit is in no log any more if the topic is gone; if it moved, it may have to be done again.
        """
        self._end(
            NotLeader(f"{self} was moved to another broker") if moved else UnknownTopic(f"{self} has been deleted")
        )
        self.log.abandon()

    def _end(self, error: HeadraceError) -> None:
        self.failure = error
        self.waiters.dismiss(self, error)

    # Followers

    def update_follower_fetch_state(
        self,
        broker: int,
        broker_epoch: int,
        offset: int,
        last_fetched_epoch: int,
        now_ms: int,
        log_start_offset: int = -1,
    ) -> None:
        """A follower asks from `offset` on, which says that it has what is before; unless its history is another."""
        assert self.leadership is not None, "the caller has checked that we lead"
        end = self.log.log_end_offset
        diverging = self.divergence_of(broker, offset, last_fetched_epoch, log_start_offset)
        is_beginning = offset <= end and diverging is None
        if is_beginning and self.leadership.fetched(broker, offset, broker_epoch, end, now_ms):
            if self.leadership.starts_at(broker, log_start_offset):
                self.waiters.tell_log_start()
            if self.waiters.awaits_fetch:
                self.waiters.tell_fetched()
            self._advance()

    def divergence_of(
        self, broker: int, offset: int, last_fetched_epoch: int, log_start_offset: int
    ) -> EpochEndOffset | None:
        """Where a follower has to truncate its log to; None if its log is a beginning of this one."""
        own_start = self.log.log_start_offset
        leadership = self.leadership
        if leadership is not None and leadership.lacks_beginning(broker, offset, log_start_offset, own_start):
            return EpochEndOffset(NO_EPOCH, own_start)
        return self.divergence(offset, last_fetched_epoch)

    def check_follower(self, broker: int) -> None:
        if self.leadership is None or broker not in self.leadership.followers:
            raise UnknownTopic(f"broker {broker} holds no replica of {self}")

    def last_offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below the asked one, and where it ended."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    # Shrinking

    def delete_records(self, before: int) -> int:
        """Moves the log start offset forward; -1 stands for the high watermark. Returns the new start."""
        if before == -1 and self.watermark_lags:
            raise RequestTimedOut(f"the high watermark of {self} is not known since the last leader election")
        target = self.high_watermark if before == -1 else before
        if target < 0 or target > self.high_watermark:
            if self.high_watermark < target <= self.log.log_end_offset:
                raise RequestTimedOut(f"offset {before} of {self} is written and not committed yet")
            raise OffsetOutOfRange(f"offset {before} is beyond the high watermark {self.high_watermark} of {self}")
        self.move_log_start(target, at_once=True)
        if self.leadership is not None:
            self.leadership.deleted_to = max(self.leadership.deleted_to, target)
        return self.log.log_start_offset

    async def deleted_everywhere(self, offset: int) -> int:
        """Waits until the log of no replica that may lead next begins below `offset`. Returns the low watermark.

        Raises when this broker stops leading: the next leader may not know of the deletion.
        """
        leadership = self.leadership
        while True:
            self.check_leader()
            if leadership is None or leadership is not self.leadership:
                raise NotLeader(f"{self} has a new leader epoch, {self.leader_epoch}")
            reached = leadership.low_watermark(self.log_start_offset)
            if reached >= offset:
                return reached
            await self.waiters.until_log_start_moves()

    def move_log_start(self, offset: int, *, at_once: bool = False) -> None:
        """With `at_once`, the caller makes the move durable: see `Removals.settle_log_starts`."""
        if offset > self.log.log_start_offset:
            self._let_go(self, self.log.advance_log_start(offset), at_once)


def _first_watermark(log: Log, known: int | None, state: PartitionRegistration) -> int:
    if len(state.replicas) == 1:
        return log.log_end_offset
    return min(max(known or 0, log.log_start_offset), log.log_end_offset)
