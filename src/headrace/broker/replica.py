"""What this broker holds of a partition, whatever its role: a log, how much of it counts, what is committed, who waits.

Everything runs on the loop; only syncing happens elsewhere, and its result comes back here. What the broker is to
others in this partition, leader or follower, is in `partition.py`.
"""

import asyncio
from abc import ABC, abstractmethod
from uuid import UUID

from headrace.broker.flush_policies import syncs_before_ack
from headrace.broker.group_commit import GroupCommit
from headrace.broker.waiting import AppendWaiter, Waiters
from headrace.core.replica.follower import EpochEnd, divergence
from headrace.model.configs import LogConfig
from headrace.model.errors import HeadraceError, StorageError
from headrace.protocol.fetch import AbortedTransaction
from headrace.storage.log import Log
from headrace.storage.log_values import FoundOffset, LogSlice
from headrace.storage.slices import Task

# Kafka's default for flush.ms is "never"; a week is as good as never, and no timer lives longer.
FLUSH_MS_MAX = 7 * 24 * 3600 * 1000


class Replica(ABC):
    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: Log,
        high_watermark: int,
        group_commit: GroupCommit | None,
    ) -> None:
        self.topic, self.index, self.topic_id = topic, index, topic_id
        self.log = log
        self._group_commit = group_commit  # None: memory, where there is nothing to wait for
        self._own_end = log.log_end_offset  # up to where this replica counts: to what is on disk, if it waits for it
        self.high_watermark = high_watermark
        log.producers.high_watermark_advanced(high_watermark)
        self.waiters = Waiters()
        self.failure: HeadraceError | None = None
        self._sync_is_scheduled = False
        self._acked_unsynced_to = 0  # below it, records were acknowledged under an earlier flush policy

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @abstractmethod
    def _advance(self) -> None:
        """More of this replica counts than before."""

    @abstractmethod
    def sync_failed(self, error: StorageError) -> None:
        """Group commit could not bring the log to disk, and does not try again."""

    @property
    def waits_for_disk(self) -> bool:
        """Whether a batch counts only once it is on disk."""
        return self._group_commit is not None and syncs_before_ack(self.log.config)

    @property
    def may_have_acked_unsynced(self) -> bool:
        """Whether a record may have been acknowledged that is not synced, also under an earlier flush policy."""
        if self._group_commit is None:
            return False
        acked_to = min(self._acked_unsynced_to, self.log.log_end_offset)
        return not syncs_before_ack(self.log.config) or self.log.recovery_point < acked_to

    def configure(self, config: LogConfig) -> None:
        """Take over the topic's configs. What an earlier flush policy left unsynced is synced now."""
        synced_before = syncs_before_ack(self.log.config)
        self.log.config = config
        if syncs_before_ack(config) and not synced_before:
            self._acked_unsynced_to = self.log.log_end_offset
            self.sync_in_background()

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

    # Growing

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

    def committed_to(self, offset: int) -> None:
        """The watermark is there: by our own reckoning, or by the leader's word."""
        self.high_watermark = offset
        self.log.producers.high_watermark_advanced(offset)
        self.waiters.tell_committed(offset)

    def wait_for_commit(self, offset: int, waiter: AppendWaiter) -> None:
        """Tell the waiter when the high watermark reaches `offset`."""
        self.waiters.appends.append((offset, waiter))

    async def settled(self) -> None:
        """Returns when everything that is written now is committed, or cannot be any more."""
        if self.failure is None and self.high_watermark < self.log.log_end_offset:
            await self.waiters.until_committed(self.log.log_end_offset)

    def was_cut(self) -> None:
        """The log is shorter than it was, or begins elsewhere."""
        log = self.log
        self._own_end = min(self._own_end, log.log_end_offset)
        self.waiters.cut_syncs(log.log_end_offset, log.recovery_point)
        self.high_watermark = min(max(self.high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.high_watermark_advanced(self.high_watermark)

    # Reading

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """What we have instead, if a log that ends there, in that epoch, is no beginning of ours."""
        return divergence(self.log.epochs, self.log.log_end_offset, offset, last_fetched_epoch)

    def read_uncommitted(self, offset: int, bytes_max: int) -> LogSlice | None:
        """What is written, committed or not: for followers, and for a leader that reads its own log."""
        return self.log.read(offset, bytes_max, self.log.log_end_offset)

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

    def offset_for_timestamp(self, timestamp: int) -> Task[FoundOffset | None]:
        """The first committed record that is not older. A task; the caller checks afterwards that it still leads."""
        # Where nobody asks for times, this and what reads records is never loaded.
        from headrace.storage.time_lookup import offset_at_or_after

        found = yield from offset_at_or_after(self.log, timestamp)
        return found if found is not None and found.offset < self.high_watermark else None

    def offset_of_max_timestamp(self) -> Task[FoundOffset | None]:
        from headrace.storage.time_lookup import offset_of_max_timestamp

        return offset_of_max_timestamp(self.log)
