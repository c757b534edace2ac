"""What compaction leaves of one batch: all of it, some of its records, its bare header, or nothing.

What a reader who is on the way through the log could still need stays a while longer than its key's last record:

- tombstones, and markers that have outlived their transactions, until the delete horizon that their batch is given
  when they are first met (KIP-534), so that nobody reads a value and misses its deletion;
- the last batch of each producer, if need be without records: it carries the sequence that comes next;
- the last batch of each segment, likewise: it carries the offset at which the segment ends.
"""

from collections.abc import Callable

from headrace.model.errors import CorruptBatch, CorruptLog
from headrace.records.batch import NO_TIMESTAMP, BatchHeader
from headrace.records.builder import sealed
from headrace.records.compression import Codec, compress
from headrace.records.control import EndMarker, read_marker
from headrace.records.filtering import empty_batch, filter_batch
from headrace.records.record import NO_VALUE
from headrace.storage.batch_reader import (
    CODEC_BYTES_ON_LOOP_MAX,
    RECORDS_PER_SLICE,
    is_small,
    plain_records,
    records_in_slices,
)
from headrace.storage.cleaned_transactions import CleanedTransactions
from headrace.storage.files import Bytes
from headrace.storage.key_offsets import KeyOffsets
from headrace.storage.producer_state import ProducerStates
from headrace.storage.slices import Task, off_loop
from headrace.storage.txn_index import AbortedTxn

TIMESTAMP_MAX = 2**63 - 1


class BatchFilter:
    """Fed with every batch of a log in order, up to where cleaning goes."""

    def __init__(
        self,
        keys: KeyOffsets,
        transactions: CleanedTransactions,
        producers: ProducerStates,
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
        """The bytes that stay, `batch` itself if they all do. `keep_aborted` takes what the new index needs."""
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
        # Nothing but a marker is known of this epoch: it is what fences the epochs before.
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
    """Deltas are relative to a base that stays, so the records are copied as they are."""
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
