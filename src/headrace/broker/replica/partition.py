"""Partition as its broker sees it: leader, leader epoch, ISR, appends and the high watermark.

A single broker uses the same leader epochs, ISR and high watermark. The log, reads and flushes are in
`local_replica.py`; replication from a leader is in `replication/replica_fetcher.py`.
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
    """Runs the work at once: for a partition without a broker, which has no threads."""
    work()


class AppendResult(NamedTuple):
    base_offset: int
    next_offset: int
    append_time_ms: int
    committed: bool


class AppendedRun(NamedTuple):
    """Result of batches that were written with one system call."""

    places: list[tuple[int, int]]  # base offset and append time of each batch
    next_offset: int
    committed: bool


class Term(NamedTuple):
    """Leader, leader epoch and failure. Work that waited compares them to detect a change."""

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
        """`high_watermark` is the one checkpointed at the last stop; an unreplicated partition needs none.

        `was_clean`: the last stop was clean, so this broker may resume leading in the epoch that it led before.
        """
        super().__init__(topic, index, topic_id, log, _first_watermark(log, high_watermark, state), group_commit)
        self._node_id = node_id
        self._let_go = let_go
        self._in_background = in_background
        self.leadership: LeaderState | None = None  # set while this broker leads
        self.sent = SentSlices()  # of this leader epoch
        self.leader, self.leader_epoch, self.isr, self.elr = NO_LEADER, -1, state.isr, state.elr
        self.replicas = state.replicas
        # While this replica is corrupt: the first leader epoch in which it may be truncated and replicated again, see
        # broker/replication/replica_health.py.
        self.refetch_from_epoch: int | None = None
        self._has_led_before = was_clean
        self._reused_epoch = -1
        self.follow(state, now_ms)
        self._has_led_before = False

    def follow(self, state: PartitionRegistration, now_ms: int = 0) -> None:
        """Applies the partition state of the cluster metadata.

        Metadata with a leader epoch below the log's was restored from an older snapshot. In such an epoch the
        partition has no leader here, and is neither replicated nor truncated, until a higher epoch is committed
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
        """Whether this broker would start to lead in an epoch of which its log already has another leader's records.

        After a restore, an election can raise the restored epoch to one that is in the log.
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
        """Whether the metadata's leader epoch precedes, or reuses, an epoch that the log has from before a restore."""
        return self.leader_epoch < self.newest_log_epoch or self.leader_epoch == self._reused_epoch

    def doubtful_transactions(self) -> list[DoubtfulTransaction]:
        """Returns open transactions whose end marker may be corrupt. Empty unless this broker leads."""
        if self.leadership is None or self.failure is not None or self.log.producers.first_unstable_offset is None:
            return []
        return doubtful_transactions(self.log.segments, self.log.producers)

    @property
    def term(self) -> Term:
        return Term(self.leader, self.leader_epoch, self.failure)

    @property
    def newest_log_epoch(self) -> int:
        """Leader epoch of the newest batch; -1 if the log is empty."""
        return self.log.epochs.latest

    def _start_leader_epoch(self, state: PartitionRegistration, now_ms: int) -> None:
        was_leading = self.leadership is not None
        self.leadership, self.sent = None, SentSlices()
        if state.leader == self._node_id:
            self._durable_end_offset = self.log.recovery_point if self.flushes_before_ack else self.log.log_end_offset
            self.leadership = LeaderState(self._node_id, state, self.log.log_end_offset, now_ms)
            self.request_flush()
        if was_leading:
            # Waiting requests fail with NotLeader, also if this broker leads again: records appended in the old epoch
            # may have been truncated.
            news = NotLeader(f"broker {state.leader} leads {self} in epoch {state.leader_epoch}")
            self.waiters.dismiss(self, news)

    def _advance(self) -> None:
        """Advances the high watermark to the offset that every replica which may be in the ISR has reached."""
        leadership = self.leadership
        if leadership is None:
            return
        reached = leadership.watermark(self._durable_end_offset, self.log.config.min_insync_replicas)
        if reached is not None and reached > self.high_watermark:
            self.set_high_watermark(reached)

    @property
    def watermark_lags(self) -> bool:
        """True on a new leader until its high watermark reaches the start of its epoch.

        Until then an earlier leader may have committed more than this high watermark covers.
        """
        return self.leadership is not None and self.high_watermark < self.leadership.epoch_start

    async def settled(self) -> None:
        """Returns at once if no commit can be expected: on a follower, below min.insync.replicas, after an election."""
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
                raise  # no other replica is in the ISR: the consumer gets the error and may skip the corruption
            # Another replica is about to lead. The error is retriable: the client refreshes its metadata and retries.
            raise StorageError(f"{damage}; other replicas have it") from damage

    # Checks

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raises unless this broker leads, the partition is online, and the client's leader epoch is current."""
        if self.failure is not None:
            raise self.failure
        if self.leader != self._node_id:
            raise NotLeader(f"broker {self.leader} leads {self}")
        self._check_epoch(current_leader_epoch)

    def check_follower_read(self, current_leader_epoch: int) -> None:
        """Raises unless this broker follows a leader and is online. Consumers read up to the high watermark."""
        if self.leader in (NO_LEADER, self._node_id):
            raise NotLeader(f"{self} is not a follower on this broker")
        if self.failure is not None:
            raise self.failure
        self._check_epoch(current_leader_epoch)

    def _check_epoch(self, current_leader_epoch: int) -> None:
        """Raises if the client's leader epoch is older or newer than the partition's. A negative one is not checked."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self} is at leader epoch {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"{self} has not received leader epoch {current_leader_epoch} yet")

    # Writing

    def append(self, records: memoryview | ValidatedBatch, acks: int, now_ms: int) -> AppendResult:
        """Appends a producer's batch, and validates it first unless that has been done."""
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
        """Appends consecutive batches of one producer with one write. Returns None if it must append them singly."""
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
        """Raises unless this broker leads the partition, it is online, and the ISR is large enough for `acks`."""
        if self.failure is not None or self.leader != self._node_id:
            self.check_leader()
        needed = self.log.config.min_insync_replicas
        if acks == ACKS_ALL and len(self.isr) < needed:
            raise NotEnoughReplicas(f"{self} has {len(self.isr)} in-sync replicas, needs {needed}")

    def append_internal(self, batch: memoryview, now_ms: int) -> int:
        """Appends a coordinator's batch; returns the offset after it.

        A batch with a producer id is part of that producer's transaction.
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
        """Appends a transaction marker; returns the offset after it.

        `newest_coordinator_epoch` is the highest epoch of any coordinator; the marker's epoch may not exceed it.
        Raises NotEnoughReplicas below min.insync.replicas: the marker could not be committed, and its retries would
        accumulate.
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

    # Failure

    def append_failed(self, error: StorageError) -> None:
        """Takes the partition offline unless the error is retriable.

        A full disk and exhausted descriptors are retriable. Any other error leaves the log in an unknown state.
        """
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
            cut = self.log.truncate_unflushed()  # not acknowledged, so it may be truncated
            self._in_background(lambda: self._sync_cut(cut))
        except StorageError as error:
            log.critical("%s: cannot truncate what was not synced: %s", self, error)

    def _sync_cut(self, cut: list[Durable]) -> None:
        """Syncs the truncation in the background: the disk has just failed a sync and may take long to fail another."""
        try:
            for item in cut:
                item.sync()
        except StorageError as error:
            log.critical("%s: cannot truncate what was not synced: %s", self, error)

    def go_offline(self, error: StorageError) -> None:
        """Takes the partition offline until a restart has recovered its log."""
        if self.failure is None:
            log.critical("%s goes offline: %s", self, error)
            self._end(error)

    def fence(self) -> None:
        """Stops serving the partition: another process has this broker's id, and may lack what was appended here."""
        if self.failure is None:
            self._end(NotLeader(f"Broker {self._node_id} is another process now; it may lead {self}"))

    def retire(self, *, moved: bool = False) -> None:
        """Ends the partition here because its topic was deleted or the replica was moved. Waiting requests fail.

        The error differs: records that waited for a commit are lost if the topic was deleted; a client may have to
        retry if the replica was moved.
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
        """Records a follower's fetch. Its offset acknowledges every record below it, unless its log has diverged."""
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
        """Returns where a follower must truncate its log to; None if its log is a prefix of this one."""
        own_start = self.log.log_start_offset
        leadership = self.leadership
        if leadership is not None and leadership.lacks_beginning(broker, offset, log_start_offset, own_start):
            return EpochEndOffset(NO_EPOCH, own_start)
        return self.divergence(offset, last_fetched_epoch)

    def check_follower(self, broker: int) -> None:
        if self.leadership is None or broker not in self.leadership.followers:
            raise UnknownTopic(f"broker {broker} holds no replica of {self}")

    def last_offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """Returns the largest epoch at or below the requested one, and its end offset."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    # Deleting records

    def delete_records(self, before: int) -> int:
        """Moves the log start offset forward; -1 stands for the high watermark. Returns the new log start offset."""
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
        """Returns the low watermark once the log of no replica that may be in the ISR starts below `offset`.

        Raises when this broker stops leading: the next leader may not have received the deletion.
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
        """Moves the log start offset forward.

        With `at_once`, the caller makes it durable: see `FileDeleter.settle_log_starts`.
        """
        if offset > self.log.log_start_offset:
            self._let_go(self, self.log.advance_log_start(offset), at_once)


def _first_watermark(log: Log, known: int | None, state: PartitionRegistration) -> int:
    if len(state.replicas) == 1:
        return log.log_end_offset
    return min(max(known or 0, log.log_start_offset), log.log_end_offset)
