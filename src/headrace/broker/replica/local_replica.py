"""Replica of a partition on this broker, in any role: its log, durable offset, high watermark and delayed operations.

Runs on the event loop. Only flushes run elsewhere; their results are delivered on the loop. The leader's and the
follower's rules are in `partition.py`.
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

# Kafka's default for flush.ms is "never". A week is treated as never, so that no timer is longer.
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
        self._group_commit = group_commit  # None in memory mode, where there is nothing to flush
        # Offset up to which this replica contributes to the high watermark: flushed, if acks wait for the flush.
        self._durable_end_offset = log.log_end_offset
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
        """Advances the high watermark if it may advance. Called when the durable end offset has grown."""

    @abstractmethod
    def sync_failed(self, error: StorageError) -> None:
        """Called when a flush of the log has failed. The flush is not retried."""

    @property
    def flushes_before_ack(self) -> bool:
        """Whether a batch contributes to the high watermark only after it is flushed."""
        return self._group_commit is not None and syncs_before_ack(self.log.config)

    @property
    def may_have_acked_unsynced(self) -> bool:
        """Whether a record may be acknowledged but not synced, including records of an earlier flush policy."""
        if self._group_commit is None:
            return False
        acked_to = min(self._acked_unsynced_to, self.log.log_end_offset)
        return not syncs_before_ack(self.log.config) or self.log.recovery_point < acked_to

    def configure(self, config: LogConfig) -> None:
        """Applies the topic's configs. Records that an earlier flush policy left unsynced are flushed now."""
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
        """Offset below which every transaction is committed or aborted."""
        unstable = self.log.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        # DeleteRecords may have moved the log start offset past it.
        return max(min(unstable, self.high_watermark), self.log.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    # Appending

    def appended(self, next_offset: int) -> None:
        """Called after an append: a producer's batch, a batch of this broker, or batches replicated from the leader."""
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
        """Applies `flush.messages` and `flush.ms`, for topics whose acks do not wait for the flush."""
        config = self.log.config
        if next_offset - self.log.recovery_point >= config.flush_messages:
            self.request_flush()
        elif config.flush_ms < FLUSH_MS_MAX and not self._sync_is_scheduled:
            self._sync_is_scheduled = True
            asyncio.get_running_loop().call_later(config.flush_ms / 1000, self.request_flush)

    def request_flush(self) -> None:
        """Requests a flush if the log has unflushed records, also for topics whose acks do not wait for it."""
        self._sync_is_scheduled = False
        if self._group_commit is not None and self.log.recovery_point < self.log.log_end_offset:
            self._group_commit.request(self)

    def synced(self, offset: int) -> None:
        """Called when a flush has synced everything below `offset`."""
        if self.failure is not None:
            # An earlier flush failed. This one may have succeeded only because the kernel discarded the dirty pages.
            return
        if not self.log.synced(offset):
            return
        self.waiters.on_flush_advanced(offset)
        if offset > self._durable_end_offset:
            self._durable_end_offset = offset
            self._advance()

    async def wait_until_flushed(self) -> None:
        """Returns when all records that are in the log now are flushed; at once if acks do not wait for the flush."""
        if not self.flushes_before_ack or self.log.recovery_point >= self.log.log_end_offset:
            return
        if self.failure is not None:
            raise self.failure
        await self.waiters.until_synced(self.log.log_end_offset)

    def set_high_watermark(self, offset: int) -> None:
        """Sets the high watermark, computed here on the leader or received from the leader on a follower."""
        self.high_watermark = offset
        self.log.producers.high_watermark_advanced(offset)
        self.waiters.on_high_watermark_advanced(offset)

    def wait_for_commit(self, offset: int, waiter: CommitWatcher) -> None:
        """Notifies the waiter when the high watermark reaches `offset`."""
        self.waiters.appends.append((offset, waiter))

    async def settled(self) -> None:
        """Returns when all records that are in the log now are committed, or can no longer be committed."""
        if self.failure is None and self.high_watermark < self.log.log_end_offset:
            await self.waiters.until_committed(self.log.log_end_offset)

    def on_truncated(self) -> None:
        """Called after the log was truncated, or restarted at another offset."""
        log = self.log
        self._durable_end_offset = min(self._durable_end_offset, log.log_end_offset)
        self.waiters.cut_syncs(log.log_end_offset, log.recovery_point)
        self.high_watermark = min(max(self.high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.high_watermark_advanced(self.high_watermark)

    # Reading

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        """Returns None if a log that ends at `offset`, in this epoch, is a prefix of this log.

        Otherwise returns this log's largest epoch at or below `last_fetched_epoch`, and its end offset.
        """
        return divergence(self.log.epochs, self.log.log_end_offset, offset, last_fetched_epoch)

    def read_uncommitted(self, offset: int, bytes_max: int) -> FileRecords | None:
        """Reads up to the log end offset, committed or not: for followers, and for a leader that reads its own log."""
        return self.log.read(offset, bytes_max, self.log.log_end_offset)

    def read(self, offset: int, bytes_max: int, *, read_committed: bool) -> FileRecords | None:
        limit = self.last_stable_offset if read_committed else self.high_watermark
        if offset > self.high_watermark and offset <= self.log.log_end_offset:
            # The offset is written but not committed. It will be soon, so the consumer waits instead of resetting its
            # position.
            return None
        return self.log.read(offset, bytes_max, limit)

    def aborted_transactions(self, offset: int, records: FileRecords | None) -> tuple[AbortedTransaction, ...]:
        if records is None:
            return ()
        aborted = self.log.aborted_transactions(offset, records)
        return tuple(AbortedTransaction(txn.producer_id, txn.first_offset) for txn in aborted)

    def offset_for_timestamp(self, timestamp: int) -> Task[TimestampAndOffset | None]:
        """Returns the first committed record with this timestamp or a later one.

        A task; the caller checks leadership afterwards.
        """
        # Imported on use: without timestamp lookups, this module and the record readers are never loaded.
        from headrace.storage.timestamp_lookup import offset_at_or_after

        found = yield from offset_at_or_after(self.log, timestamp)
        return found if found is not None and found.offset < self.high_watermark else None

    def offset_of_max_timestamp(self) -> Task[TimestampAndOffset | None]:
        from headrace.storage.timestamp_lookup import offset_of_max_timestamp

        return offset_of_max_timestamp(self.log)
