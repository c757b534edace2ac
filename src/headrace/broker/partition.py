"""A partition as its broker sees it: a log, who leads it, what is committed, and who waits for news.

Speaks in leader epochs, in-sync replicas and the high watermark even where the broker is alone. Everything runs on
the loop; only syncing happens elsewhere, and its result comes back here. What a follower does with its log is in
`replication/copying.py`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.admission import Admitted, admit
from headrace.broker.group_commit import GroupCommit
from headrace.broker.waiting import AppendWaiter, Waiters
from headrace.core.cluster.values import NO_LEADER, PartitionState
from headrace.core.replica.follower import EpochEnd, divergence
from headrace.core.replica.leader import Leadership
from headrace.model.errors import (
    DiskFull,
    FencedLeaderEpoch,
    HeadraceError,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from headrace.protocol.fetch import AbortedTransaction
from headrace.records.batch import parse_header
from headrace.storage.log import Log
from headrace.storage.log_values import Appended, FoundOffset, LogSlice, Producer
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.records.control import EndMarker

log = logging.getLogger(__name__)

ACKS_ALL = -1
# Kafka's default for flush.ms is "never"; a week is as good as never, and no timer lives longer.
FLUSH_MS_MAX = 7 * 24 * 3600 * 1000


class AppendResult(NamedTuple):
    base_offset: int
    next_offset: int
    append_time_ms: int
    committed: bool


class Partition:
    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: Log,
        state: PartitionState,
        *,
        node_id: int,
        group_commit: GroupCommit | None,
        let_go: Callable[["Partition", list[Segment], bool], None],
        high_watermark: int | None = None,
        now_ms: int = 0,
    ) -> None:
        """`high_watermark` is what was known of it at the last stop; a partition on this broker alone needs none."""
        self.topic, self.index, self.topic_id = topic, index, topic_id
        self.log = log
        self._node_id = node_id
        self._group_commit = group_commit  # None: memory, where there is nothing to wait for
        self._let_go = let_go
        self.leadership: Leadership | None = None  # there while this broker leads
        self.leader, self.leader_epoch, self.isr = NO_LEADER, -1, state.isr
        self._own_end = log.log_end_offset  # up to where this replica counts: to what is on disk, if it waits for it
        self.high_watermark = self._first_watermark(high_watermark, state)
        log.producers.high_watermark_advanced(self.high_watermark)
        self.waiters = Waiters()
        self.failure: HeadraceError | None = None
        self._sync_is_scheduled = False
        self.follow(state, now_ms)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def _first_watermark(self, known: int | None, state: PartitionState) -> int:
        if len(state.replicas) == 1:
            return self.log.log_end_offset
        return min(max(known or 0, self.log.log_start_offset), self.log.log_end_offset)

    def follow(self, state: PartitionState, now_ms: int = 0) -> None:
        """Take over what the facts say about this partition."""
        is_new_term = (state.leader, state.leader_epoch) != (self.leader, self.leader_epoch)
        self.leader, self.leader_epoch, self.isr = state.leader, state.leader_epoch, state.isr
        if is_new_term:
            self._begin_term(state, now_ms)
        elif self.leadership is not None:
            self.leadership.follow(state, now_ms)
        self._advance()

    def _begin_term(self, state: PartitionState, now_ms: int) -> None:
        was_leading = self.leadership is not None
        self.leadership = None
        if state.leader == self._node_id:
            self._own_end = self.log.recovery_point if self.waits_for_disk else self.log.log_end_offset
            self.leadership = Leadership(self._node_id, state, self.log.log_end_offset, now_ms)
            self.sync_in_background()
        if was_leading:
            # Whoever waits is told to look for the new leader, also where that is this broker again: what the old
            # epoch promised is not known to be kept.
            news = NotLeader(f"broker {state.leader} leads {self} in epoch {state.leader_epoch}")
            self.waiters.dismiss(self, news)

    @property
    def waits_for_disk(self) -> bool:
        """Whether a batch counts only once it is on disk. Kafka's `flush.messages=1` asks for the same."""
        config = self.log.config
        return self._group_commit is not None and (config.flush_policy == "fsync" or config.flush_messages <= 1)

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Up to where every transaction is decided."""
        unstable = self.log.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return max(min(unstable, self.high_watermark), self.log.log_start_offset)  # records may be deleted by hand

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    # Checks

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raise unless we lead, are healthy, and the client believes in the same leader epoch."""
        if self.failure is not None:
            raise self.failure
        if self.leader != self._node_id:
            raise NotLeader(f"broker {self.leader} leads {self}")
        self._check_epoch(current_leader_epoch)

    def check_follows(self, current_leader_epoch: int) -> None:
        """Raise unless we copy from a leader and are healthy: then consumers may read here what is committed."""
        if self.leader in (NO_LEADER, self._node_id):
            raise NotLeader(f"{self} is not copied from anybody here")
        if self.failure is not None:
            raise self.failure
        self._check_epoch(current_leader_epoch)

    def _check_epoch(self, current_leader_epoch: int) -> None:
        """The client believes in the same leader epoch, or names none."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self} is at leader epoch {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"{self} has not heard of leader epoch {current_leader_epoch} yet")

    # Writing

    def append(self, records: memoryview | Admitted, acks: int, now_ms: int) -> AppendResult:
        """Write a batch that a client has sent, admitting it unless that has been done."""
        self.check_leader()
        config = self.log.config
        if acks == ACKS_ALL and len(self.isr) < config.min_insync_replicas:
            raise NotEnoughReplicas(f"{self} has {len(self.isr)} in-sync replicas, needs {config.min_insync_replicas}")
        batch, header, append_time_ms = records if isinstance(records, Admitted) else admit(records, config, now_ms)
        try:
            base_offset, next_offset, duplicate = self.log.append(batch, header, self.leader_epoch, now_ms)
        except StorageError as error:
            self.append_failed(error)
            raise
        if not duplicate:
            self.appended(next_offset)
        return AppendResult(base_offset, next_offset, append_time_ms, next_offset <= self.high_watermark)

    def append_internal(self, batch: memoryview, now_ms: int) -> int:
        """A batch of our own making, for a coordinator; returns the offset after it.

        One that names a producer is part of that producer's transaction.
        """
        header = parse_header(batch)
        append = self.log.append if header.producer_id < 0 else self.log.append_for_producer
        return self._append_ours(lambda: append(batch, header, self.leader_epoch, now_ms))

    def append_marker(self, marker: "EndMarker", producer: Producer, now_ms: int, *, epoch_was_bumped: bool) -> int:
        """End a producer's transaction in this partition; returns the offset after the marker."""
        return self._append_ours(
            lambda: self.log.append_marker(
                marker, producer, self.leader_epoch, now_ms, epoch_was_bumped=epoch_was_bumped
            )
        )

    def _append_ours(self, append: Callable[[], Appended]) -> int:
        self.check_leader()
        try:
            appended = append()
        except StorageError as error:
            self.append_failed(error)
            raise
        self.appended(appended.next_offset)
        return appended.next_offset

    def append_failed(self, error: StorageError) -> None:
        """A full disk heals; anything else leaves the log in a state that nobody knows."""
        if not isinstance(error, DiskFull):
            self.go_offline(error)

    def appended(self, next_offset: int) -> None:
        """The log has become longer: by a batch of a client's or of our own, or by copies of the leader's."""
        if self.waits_for_disk:
            assert self._group_commit is not None
            self._group_commit.request(self)
        else:
            self._own_end = next_offset
            self._advance()
            if self._group_commit is not None:
                self._sync_when_due(next_offset)
        self.waiters.tell_appended()

    def _sync_when_due(self, next_offset: int) -> None:
        """`flush.messages` and `flush.ms`, for topics whose acks do not wait for the disk."""
        config = self.log.config
        if next_offset - self.log.recovery_point >= config.flush_messages:
            self.sync_in_background()
        elif config.flush_ms < FLUSH_MS_MAX and not self._sync_is_scheduled:
            self._sync_is_scheduled = True
            asyncio.get_running_loop().call_later(config.flush_ms / 1000, self.sync_in_background)

    def sync_in_background(self) -> None:
        """Where acks do not wait for the disk, it still gets everything before long."""
        self._sync_is_scheduled = False
        if self._group_commit is not None and self.log.recovery_point < self.log.log_end_offset:
            self._group_commit.request(self)

    def synced(self, offset: int) -> None:
        """Group commit has brought everything below `offset` to disk."""
        if self.failure is not None:
            return  # an earlier sync failed: this one may have succeeded because the kernel has given those bytes up
        if not self.log.synced(offset):
            return
        self.waiters.tell_synced(offset)
        if offset > self._own_end:
            self._own_end = offset
            self._advance()

    async def on_disk(self) -> None:
        """Returns when everything that is written now is on disk; at once where nobody waits for the disk."""
        if not self.waits_for_disk or self.log.recovery_point >= self.log.log_end_offset:
            return
        if self.failure is not None:
            raise self.failure
        await self.waiters.until_synced(self.log.log_end_offset)

    def sync_failed(self, error: StorageError) -> None:
        if self.waits_for_disk and self.failure is None:
            try:
                self.log.cut_unsynced()  # nobody was promised any of it
            except StorageError as another:
                log.critical("%s: what was not synced cannot be cut: %s", self, another)
        self.go_offline(error)

    def _advance(self) -> None:
        """Move the watermark to where every replica has come that may be in sync."""
        leadership = self.leadership
        if leadership is None:
            return
        reached = leadership.watermark(self._own_end, self.log.config.min_insync_replicas)
        if reached is not None and reached > self.high_watermark:
            self.committed_to(reached)

    def committed_to(self, offset: int) -> None:
        """The watermark is there: by our own reckoning, or by the leader's word."""
        self.high_watermark = offset
        self.log.producers.high_watermark_advanced(offset)
        self.waiters.tell_committed(offset)

    def wait_for_commit(self, offset: int, waiter: AppendWaiter) -> None:
        """Tell the waiter when the high watermark reaches `offset`."""
        self.waiters.appends.append((offset, waiter))

    def go_offline(self, error: StorageError) -> None:
        """Nothing more is promised about this partition until a restart has looked at its files."""
        if self.failure is None:
            log.critical("%s goes offline: %s", self, error)
            self._end(error)

    def retire(self) -> None:
        """The topic has been deleted: whoever still waits is told that there is no such partition."""
        self._end(UnknownTopic(f"{self} has been deleted"))
        self.log.abandon()

    def _end(self, error: HeadraceError) -> None:
        self.failure = error
        self.waiters.dismiss(self, error)

    # Followers

    def replica_fetched(
        self, broker: int, broker_epoch: int, offset: int, last_fetched_epoch: int, now_ms: int
    ) -> None:
        """A follower asks from `offset` on, which says that it has what is before; unless its history is another."""
        assert self.leadership is not None, "the caller has checked that we lead"
        end = self.log.log_end_offset
        is_beginning = offset <= end and self.divergence(offset, last_fetched_epoch) is None
        if is_beginning and self.leadership.fetched(broker, offset, broker_epoch, end, now_ms):
            self._advance()

    def check_follower(self, broker: int) -> None:
        if self.leadership is None or broker not in self.leadership.followers:
            raise UnknownTopic(f"broker {broker} holds no replica of {self}")

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """What we have instead, if a log that ends there, in that epoch, is no beginning of ours."""
        return divergence(self.log.epochs, self.log.log_end_offset, offset, last_fetched_epoch)

    def was_cut(self) -> None:
        """The log is shorter than it was, or begins elsewhere."""
        log = self.log
        self._own_end = min(self._own_end, log.log_end_offset)
        self.high_watermark = min(max(self.high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.high_watermark_advanced(self.high_watermark)

    def read_uncommitted(self, offset: int, bytes_max: int) -> LogSlice | None:
        """What is written, committed or not: for followers, and for a leader that reads its own log."""
        return self.log.read(offset, bytes_max, self.log.log_end_offset)

    # Reading

    def read(self, offset: int, bytes_max: int, *, read_committed: bool) -> LogSlice | None:
        limit = self.last_stable_offset if read_committed else self.high_watermark
        if offset > self.high_watermark and offset <= self.log.log_end_offset:
            # Written but not committed: it is about to be there, so the client waits instead of starting over.
            return None
        return self.log.read(offset, bytes_max, limit)

    def aborted_transactions(self, offset: int, records: LogSlice | None) -> tuple[AbortedTransaction, ...]:
        if records is None:
            return ()
        aborted = self.log.aborted_transactions(offset, records)
        return tuple(AbortedTransaction(txn.producer_id, txn.first_offset) for txn in aborted)

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        # Where nobody asks for times, this and what reads records is never loaded.
        from headrace.storage.time_lookup import offset_at_or_after

        found = offset_at_or_after(self.log, timestamp)
        return found if found is not None and found.offset < self.high_watermark else None

    def offset_of_max_timestamp(self) -> FoundOffset | None:
        from headrace.storage.time_lookup import offset_of_max_timestamp

        return offset_of_max_timestamp(self.log)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below the asked one, and where it ended."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    # Shrinking

    def delete_records(self, before: int) -> int:
        """Move the log's start forward; -1 stands for the high watermark. Returns the new start."""
        target = self.high_watermark if before == -1 else before
        if target < 0 or target > self.high_watermark:
            if self.high_watermark < target <= self.log.log_end_offset:
                raise RequestTimedOut(f"offset {before} of {self} is written and not committed yet")
            raise OffsetOutOfRange(f"offset {before} is beyond the high watermark {self.high_watermark} of {self}")
        self.move_log_start(target, at_once=True)
        return self.log.log_start_offset

    def move_log_start(self, offset: int, *, at_once: bool = False) -> None:
        """With `at_once`, a crash right after this does not bring the records back."""
        if offset > self.log.log_start_offset:
            self._let_go(self, self.log.advance_log_start(offset), at_once)

    async def settled(self) -> None:
        """Returns when everything that is written now is committed, or cannot be any more."""
        if self.failure is None and self.high_watermark < self.log.log_end_offset:
            await self.waiters.until_committed(self.log.log_end_offset)
