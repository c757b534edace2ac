"""Compaction of one log: afterwards only the last record of each key is kept.

The first pass over the dirty part maps each key to its last offset. The second pass copies all segments up to there
without the superseded records (`record_filter.py`), and swaps the copies in
(`storage/segment/segment_replacement.py`). Both run in steps of a few milliseconds (`storage/io/stepwise.py`), while
the log is in use. The caller selects the log and the time (`log_to_clean.py`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.model.errors import CorruptLog
from headrace.records.batch import BatchHeader, parse_header
from headrace.storage.cleaner.batch_reader import (
    RECORDS_PER_SLICE,
    BatchReader,
    FoundBatch,
    plain_records,
    records_in_slices,
)
from headrace.storage.cleaner.log_to_clean import LogToClean, merge_groups
from headrace.storage.cleaner.offset_map import KEY_MAP_BYTES_MAX, OffsetMap
from headrace.storage.cleaner.record_filter import BatchFilter, CleanedTransactionMetadata, marker_of
from headrace.storage.io.stepwise import Step, Task, off_loop
from headrace.storage.log import Log
from headrace.storage.producer.producer_snapshot_file import remove_snapshots, snapshot_offsets, vouch_for_indexes
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import NewSegment, ReplacedSegment, refuse_unfinished_swap, swap_in
from headrace.storage.segment.transaction_index import NO_ENTRIES, AbortedTxn

# Work is counted, not timed, so that every run takes the same steps. The unit is a record, 1.7 µs: a batch costs 10 µs
# besides its records, and a KiB read, verified and written about 1 µs.
UNITS_PER_SLICE = RECORDS_PER_SLICE
UNITS_PER_BATCH = 8
BYTES_PER_UNIT = 1024


class Cleaned(NamedTuple):
    """Result of a compaction.

    `cleaned_to` goes to the cleaner checkpoint; the caller removes the replaced segments later.
    """

    cleaned_to: int
    bytes_before: int
    bytes_after: int
    replaced: list[ReplacedSegment]


class Cleaner:
    """One compaction of one log. `cleaned` has its progress at any time."""

    def __init__(self, log: Log, dirty: LogToClean, *, now_ms: int, key_map_bytes_max: int = KEY_MAP_BYTES_MAX) -> None:
        self._log = log
        self._truncations = log.truncations
        self._dirty = dirty
        self._now_ms = now_ms
        self._keys = OffsetMap(key_map_bytes_max)
        self._transactions = CleanedTransactionMetadata()
        self._filter = BatchFilter(
            self._keys,
            self._transactions,
            log.producers,
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
        )
        self._units = 0
        self.cleaned = Cleaned(dirty.first_dirty, 0, 0, [])

    def run(self) -> Task[Cleaned]:
        """Runs the compaction as a task. Ends early, with `cleaned_to` unchanged, if segments leave the log."""
        refuse_unfinished_swap(self._log.files, self._log.directory)
        yield from self._check_indexes()
        yield from self._map_dirty_keys()
        end = self._keys.latest + 1
        if (yield from self._clean_up_to(end)):
            self.cleaned = self.cleaned._replace(cleaned_to=end)
        yield from self._keys.clear()
        return self.cleaned

    def _pause_after(self, header: BatchHeader) -> Iterator[Step]:
        """Yields a step if enough work was done since the last one."""
        self._units += UNITS_PER_BATCH + header.record_count + header.total_bytes // BYTES_PER_UNIT
        if self._units >= UNITS_PER_SLICE:
            self._units = 0
            yield None

    def _check_indexes(self) -> Task[None]:
        """Raises CorruptLog for a corrupt transaction index before anything changes.

        Records that are removed because of a corrupt index cannot be restored.
        """
        for segment in self._log.segments[:-1]:
            if segment.aborted.sum != NO_ENTRIES:
                try:
                    yield from off_loop(segment.aborted.check)
                except CorruptLog:
                    if segment in self._log.segments:
                        raise

    # ── First pass: the last offset of each key ──

    def _map_dirty_keys(self) -> Task[None]:
        first_dirty, end = self._dirty.first_dirty, self._dirty.end
        self._keys.latest = first_dirty - 1
        segments = [one for one in self._log.segments if one.base_offset < end and one.next_offset > first_dirty]
        transactions = CleanedTransactionMetadata()
        transactions.expect((yield from self._aborted_between(first_dirty, end)))
        for segment in segments:
            reader = BatchReader(segment, segment.translate_offset(max(first_dirty, segment.base_offset)))
            while (found := reader.next()) is not None:
                if not (yield from self._map_batch(found, transactions)):
                    return
                yield from self._pause_after(found.header)
        if segments:
            self._keys.latest = end - 1  # no record is in a gap between the last batch and `end`

    def _map_batch(self, found: FoundBatch, transactions: CleanedTransactionMetadata) -> Task[bool]:
        """Adds the keys of a batch. Returns False if the map is full."""
        batch, header, _ = found
        if header.is_control:
            transactions.marker(header, marker_of(batch, header))
        elif not transactions.data_batch(header) and header.record_count:
            section = yield from plain_records(batch, header)
            first_dirty, put = self._dirty.first_dirty, self._keys.put
            for records in records_in_slices(section, header):
                for record in records:
                    offset, key = record[0], record[2]
                    if key is not None and offset >= first_dirty and not put(key, offset):
                        return False
                if len(records) == RECORDS_PER_SLICE:
                    yield None
        self._keys.latest = max(self._keys.latest, header.last_offset)
        return True

    def _aborted_between(self, first_offset: int, upper_bound: int) -> Task[list[AbortedTxn]]:
        """Returns entries from the indexes of the segments that contain the markers, which may be past the bound."""
        aborted: list[AbortedTxn] = []
        for segment in list(self._log.segments):
            if segment.next_offset <= first_offset:
                continue
            if segment not in self._log.segments:
                continue  # retention has removed the segment from the log and renamed its index
            found, complete = segment.aborted.between(first_offset, upper_bound)
            aborted += found
            if complete:
                break
            yield None
        return aborted

    # ── Second pass: copying the records that are kept ──

    def _clean_up_to(self, end: int) -> Task[bool]:
        config = self._log.config
        segments = [segment for segment in self._log.segments if segment.base_offset < end]
        groups = merge_groups(segments, segment_bytes=config.segment_bytes, index_bytes=config.segment_index_bytes)
        for group in groups:
            # One group at a time, so that the aborted transactions of a long log are never all in memory.
            aborted = yield from self._aborted_between(group[0].base_offset, group[-1].next_offset)
            self._transactions.expect(aborted)
            if not (yield from self._clean_group(group)):
                return False
        return True

    def _clean_group(self, group: Sequence[LogSegment]) -> Task[bool]:
        """Compacts one group. Returns False if its segments have left the log."""
        log = self._log
        new = NewSegment(
            log.files,
            log.directory,
            group[0].base_offset,
            index_interval_bytes=log.config.index_interval_bytes,
            now_ms=self._now_ms,
        )
        try:
            if not (yield from self._copy(group, new)) and len(group) == 1:
                return True
            yield from off_loop(new.seal_and_sync)
            self._remove_outdated_snapshots(group[-1].next_offset)
            replaced = yield from swap_in(log, new, group, self._truncations)
        finally:
            new.discard_unless_swapped()
        if replaced is None:
            return False
        if any(segment.aborted.sum for segment in group):
            yield from vouch_for_indexes(log)
        self.cleaned.replaced.extend(replaced)
        self.cleaned = self.cleaned._replace(
            bytes_before=self.cleaned.bytes_before + sum(segment.size for segment in group),
            bytes_after=self.cleaned.bytes_after + new.segment.size,
        )
        return True

    def _remove_outdated_snapshots(self, end: int) -> None:
        """Removes snapshots below `end`.

        Recovery would treat their transactions as open when their markers are compacted.

        Durable with the first sync of the swap. The newest one stays: without any, recovery reads all batches.
        """
        log = self._log
        if any(offset >= end for offset in snapshot_offsets(log.files, log.directory)):
            remove_snapshots(log.files, log.directory, before=end)

    def _copy(self, group: Sequence[LogSegment], new: NewSegment) -> Task[bool]:
        """Writes the records of the group that are kept into the new segment. Returns whether any were removed."""
        changed = False
        for segment in group:
            reader = BatchReader(segment)
            while (found := reader.next()) is not None:
                batch, header, ends_file = found
                kept = yield from self._filter.filter(
                    batch,
                    header,
                    ends_segment=ends_file and segment is group[-1],
                    keep_aborted=new.segment.aborted.note,
                )
                if kept is not None:
                    new.segment.append(kept, header if kept is batch else parse_header(kept))
                changed = changed or kept is not batch
                yield from self._pause_after(header)
        return changed
