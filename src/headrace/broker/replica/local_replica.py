"""What this broker holds of a partition, whatever its role: a log, how much of it counts, what is committed, who waits.

Everything runs on the loop; only syncing happens elsewhere, and its result comes back here. What the broker is to
others in this partition, leader or follower, is in `partition.py`.
"""

import asyncio
from abc import ABC, abstractmethod
from uuid import UUID

from headrace.broker.replica.flush_policies import syncs_before_ack
from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.purgatory import CommitWatcher, PartitionWatchers
from headrace.config.values import LogConfig
from headrace.core.replica.follower_truncation import EpochEndOffset, divergence
from headrace.model.errors import HeadraceError, StorageError
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.storage.io.stepwise import Task
from headrace.storage.log import Log
from headrace.storage.log_types import FileRecords, TimestampAndOffset

# Kafka's default for flush.ms is "never"; a week is as good as never, and no timer lives longer.
FLUSH_MS_MAX = 7 * 24 * 3600 * 1000


class LocalReplica(ABC):
    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: Log,
        high_watermark: int,
        group_commit: LogFlusher | None,
    ) -> None:
        self.topic, self.index, self.topic_id = topic, index, topic_id
        self.log = log
        self._group_commit = group_commit  # None: memory, where there is nothing to wait for
        self._durable_end_offset = (
            log.log_end_offset
        )  # up to where this replica counts: to what is on disk, if it waits for it
        self.high_watermark = high_watermark
        log.producers.high_watermark_advanced(high_watermark)
        self.waiters = PartitionWatchers()
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
    def flushes_before_ack(self) -> bool:
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
            self.request_flush()

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
        if self.flushes_before_ack:
            assert self._group_commit is not None
            self._group_commit.request(self)
        else:
            self._durable_end_offset = next_offset
            self._advance()
            if self._group_commit is not None:
                self._sync_when_due(next_offset)
        self.waiters.on_log_end_advanced()

    def _sync_when_due(self, next_offset: int) -> None:
        """`flush.messages` and `flush.ms`, for topics whose acks do not wait for the disk."""
        config = self.log.config
        if next_offset - self.log.recovery_point >= config.flush_messages:
            self.request_flush()
        elif config.flush_ms < FLUSH_MS_MAX and not self._sync_is_scheduled:
            self._sync_is_scheduled = True
            asyncio.get_running_loop().call_later(config.flush_ms / 1000, self.request_flush)

    def request_flush(self) -> None:
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
        self.waiters.on_flush_advanced(offset)
        if offset > self._durable_end_offset:
            self._durable_end_offset = offset
            self._advance()

    async def wait_until_flushed(self) -> None:
        """Returns when everything that is written now is on disk; at once where nobody waits for the disk."""
        if not self.flushes_before_ack or self.log.recovery_point >= self.log.log_end_offset:
            return
        if self.failure is not None:
            raise self.failure
        await self.waiters.until_synced(self.log.log_end_offset)

    def set_high_watermark(self, offset: int) -> None:
        """The watermark is there: by our own reckoning, or by the leader's word."""
        self.high_watermark = offset
        self.log.producers.high_watermark_advanced(offset)
        self.waiters.on_high_watermark_advanced(offset)

    def wait_for_commit(self, offset: int, waiter: CommitWatcher) -> None:
        """Tell the waiter when the high watermark reaches `offset`."""
        self.waiters.appends.append((offset, waiter))

    async def settled(self) -> None:
        """Returns when everything that is written now is committed, or cannot be any more."""
        if self.failure is None and self.high_watermark < self.log.log_end_offset:
            await self.waiters.until_committed(self.log.log_end_offset)

    def on_truncated(self) -> None:
        """The log is shorter than it was, or begins elsewhere."""
        log = self.log
        self._durable_end_offset = min(self._durable_end_offset, log.log_end_offset)
        self.waiters.cut_syncs(log.log_end_offset, log.recovery_point)
        self.high_watermark = min(max(self.high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.high_watermark_advanced(self.high_watermark)

    # Reading

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        """What we have instead, if a log that ends there, in that epoch, is no beginning of ours."""
        return divergence(self.log.epochs, self.log.log_end_offset, offset, last_fetched_epoch)

    def read_uncommitted(self, offset: int, bytes_max: int) -> FileRecords | None:
        """What is written, committed or not: for followers, and for a leader that reads its own log."""
        return self.log.read(offset, bytes_max, self.log.log_end_offset)

    def read(self, offset: int, bytes_max: int, *, read_committed: bool) -> FileRecords | None:
        limit = self.last_stable_offset if read_committed else self.high_watermark
        if offset > self.high_watermark and offset <= self.log.log_end_offset:
            # Written but not committed: it is about to be there, so the client waits instead of starting over.
            return None
        return self.log.read(offset, bytes_max, limit)

    def aborted_transactions(self, offset: int, records: FileRecords | None) -> tuple[AbortedTransaction, ...]:
        if records is None:
            return ()
        aborted = self.log.aborted_transactions(offset, records)
        return tuple(AbortedTransaction(txn.producer_id, txn.first_offset) for txn in aborted)

    def offset_for_timestamp(self, timestamp: int) -> Task[TimestampAndOffset | None]:
        """The first committed record that is not older. A task; the caller checks afterwards that it still leads."""
        # Where nobody asks for times, this and what reads records is never loaded.
        from headrace.storage.timestamp_lookup import offset_at_or_after

        found = yield from offset_at_or_after(self.log, timestamp)
        return found if found is not None and found.offset < self.high_watermark else None

    def offset_of_max_timestamp(self) -> Task[TimestampAndOffset | None]:
        from headrace.storage.timestamp_lookup import offset_of_max_timestamp

        return offset_of_max_timestamp(self.log)
