"""Selects the records and batches that compaction keeps, and tracks transactions for it.

A marker is kept as long as a batch of its transaction: without it, a consumer would return aborted records as
committed ones, or wait forever for the end of the transaction. A marker without batches of its transaction is removed
only after the delete horizon, so that a consumer that has read part of the transaction still reads it.

A batch is kept in full, with some of its records, as a header without records, or not at all. These are kept longer
than the last record of their key, because consumers and producers may still need them:

- tombstones, and markers without batches of their transactions, until the delete horizon that their batch gets when
  they are first compacted (KIP-534), so that a consumer that has read a value also reads its deletion;
- the last batch of each producer, if need be without records: it has the last sequence;
- the last batch of each segment, likewise: it has the offset at which the segment ends.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from headrace.model.errors import CorruptBatch, CorruptLog
from headrace.records.batch import NO_TIMESTAMP, BatchHeader
from headrace.records.builder import sealed
from headrace.records.compaction_filter import empty_batch, filter_batch
from headrace.records.compression import Codec, compress
from headrace.records.control import EndMarker, read_marker
from headrace.records.record import NO_VALUE
from headrace.storage.cleaner.batch_reader import (
    CODEC_BYTES_ON_LOOP_MAX,
    RECORDS_PER_SLICE,
    is_small,
    plain_records,
    records_in_slices,
)
from headrace.storage.cleaner.offset_map import OffsetMap
from headrace.storage.io.file_system import Bytes
from headrace.storage.io.stepwise import Task, off_loop
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.storage.segment.transaction_index import AbortedTxn


class CleanedTransactionMetadata:
    """Receives every batch in log order, and the aborted transactions before their batches."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, AbortedTxn]] = []  # a heap by first offset
        self._aborted: dict[int, AbortedTxn] = {}
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def expect(self, aborted: Iterable[AbortedTxn]) -> None:
        """Adds aborted transactions. Adding one twice has no effect, so that the ranges of two calls may overlap."""
        for txn in aborted:
            heappush(self._coming, (txn.first_offset, txn))

    def data_batch(self, header: BatchHeader) -> bool:
        """Returns whether the batch belongs to an aborted transaction, so that its records are not needed."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_with_data.add(header.producer_id)
            return True
        self._committed_with_data.add(header.producer_id)
        return False

    def marker(self, header: BatchHeader, marker: EndMarker | None) -> tuple[bool, AbortedTxn | None]:
        """Returns whether no batch of the marker's transaction is left.

        If one is left and the transaction was aborted, also returns its index entry.

        None stands for a control batch without a marker: emptied before, or of a type that ends no transaction.
        """
        self._reach(header.last_offset)
        if marker is None:
            return not header.record_count, None
        producer_id = header.producer_id
        if marker.commits:
            had_data = producer_id in self._committed_with_data
            self._committed_with_data.discard(producer_id)
            return not had_data, None
        txn = self._aborted.pop(producer_id, None)
        had_data = producer_id in self._aborted_with_data
        self._aborted_with_data.discard(producer_id)
        return not had_data, txn if had_data else None

    def _reach(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            txn = heappop(self._coming)[1]
            self._aborted.setdefault(txn.producer_id, txn)


TIMESTAMP_MAX = 2**63 - 1


class BatchFilter:
    """Receives every batch of a log in order, up to the end of the compaction."""

    def __init__(
        self,
        keys: OffsetMap,
        transactions: CleanedTransactionMetadata,
        producers: ProducerStateManager,
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._keys = keys
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, TIMESTAMP_MAX)

    def filter(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        ends_segment: bool,
        keep_aborted: Callable[[AbortedTxn], None],
    ) -> Task[Bytes | None]:
        """Returns the bytes to keep, `batch` itself if that is all.

        Passes entries of the new index to `keep_aborted`.
        """
        keep_empty = ends_segment or self._is_last_of_producer(header)
        if header.is_control:
            return self._filter_marker(batch, header, keep_empty, keep_aborted)
        aborted = self._transactions.data_batch(header)
        if not header.record_count:
            return batch if keep_empty else None
        if aborted:
            return empty_batch(header) if keep_empty else None
        if header.base_offset > self._keys.latest:
            return batch
        return (yield from self._filter_records(batch, header, keep_empty))

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        entry = self._producers.get(header.producer_id)
        if entry is None:
            return False
        if entry.batches:
            return header.last_offset == entry.last_data_offset
        # This epoch has only a marker, which fences the epochs before.
        return header.is_control and header.producer_epoch == entry.epoch

    def _filter_marker(
        self,
        batch: memoryview,
        header: BatchHeader,
        keep_empty: bool,
        keep_aborted: Callable[[AbortedTxn], None],
    ) -> Bytes | None:
        outlived, aborted = self._transactions.marker(header, marker_of(batch, header))
        if aborted is not None:
            keep_aborted(aborted)
        if not header.record_count:
            return batch if keep_empty else None
        if not outlived:
            return batch
        if not header.has_delete_horizon:
            return filter_batch(batch, header, lambda *_: True, delete_horizon_ms=self._horizon_ms)
        if self._now_ms < header.base_timestamp:
            return batch
        return empty_batch(header) if keep_empty else None

    def _filter_records(self, batch: memoryview, header: BatchHeader, keep_empty: bool) -> Task[Bytes | None]:
        section = yield from plain_records(batch, header)
        tombstones_stay = not header.has_delete_horizon or self._now_ms < header.base_timestamp
        latest, last_of = self._keys.latest, self._keys.get
        kept: dict[int, bytes] = {}
        max_timestamp, has_tombstones = NO_TIMESTAMP, False
        for records in records_in_slices(section, header):
            for offset, timestamp, key, value_at, _, start, end in records:
                is_tombstone = value_at == NO_VALUE
                if offset <= latest and (
                    key is None or offset < last_of(key) or (is_tombstone and not tombstones_stay)
                ):
                    continue
                kept[offset] = section[start:end]
                max_timestamp = max(max_timestamp, timestamp)
                has_tombstones = has_tombstones or is_tombstone
            if len(records) == RECORDS_PER_SLICE:
                yield None
        if not kept:
            return empty_batch(header) if keep_empty else None
        if has_tombstones and not header.has_delete_horizon:
            return (yield from self._with_horizon(batch, header, kept))
        if len(kept) == header.record_count:
            return batch
        return (yield from _rebuilt(header._replace(max_timestamp=max_timestamp), kept))

    def _with_horizon(self, batch: memoryview, header: BatchHeader, kept: dict[int, bytes]) -> Task[Bytes | None]:
        def rewrite() -> Bytes | None:
            return filter_batch(batch, header, lambda offset, *_: offset in kept, delete_horizon_ms=self._horizon_ms)

        if is_small(batch, header):
            return rewrite()
        return (yield from off_loop(rewrite))


def _rebuilt(header: BatchHeader, kept: dict[int, bytes]) -> Task[Bytes]:
    """Rebuilds a batch. Deltas are relative to the unchanged base, so the records are copied unchanged."""
    header = header._replace(record_count=len(kept))
    section = b"".join(kept.values())
    if header.codec == Codec.NONE or len(section) <= CODEC_BYTES_ON_LOOP_MAX:
        return sealed(header, compress(header.codec, section))
    return (yield from off_loop(lambda: sealed(header, compress(header.codec, section))))


def marker_of(batch: memoryview, header: BatchHeader) -> EndMarker | None:
    try:
        return read_marker(batch, header)
    except CorruptBatch as damage:
        raise CorruptLog(f"the marker at offset {header.base_offset} cannot be read: {damage}") from damage
