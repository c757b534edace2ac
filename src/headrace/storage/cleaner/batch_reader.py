"""Reads the batches of an inactive segment in order, verified, and their records in slices.

For background work that reads whole segments. Corruption is an error here and is never skipped: a copy of a corrupt
batch would have a valid checksum and wrong records.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from headrace.model.errors import CorruptBatch, CorruptLog, HeadraceError
from headrace.records.batch import HEADER_BYTES, BatchHeader, batch_crc, parse_header
from headrace.records.compression import Codec
from headrace.records.record import FORMAT_VERSION, Placed, iter_record_spans, records_section
from headrace.storage.io.stepwise import Task, off_loop
from headrace.storage.segment.log_segment import LogSegment

# Per read: large enough to amortize the system call, small enough to take a quarter of a millisecond.
READ_BYTES = 256 * 1024
# Scanning and filtering a record takes 1.7 µs, on a slow core twice that: a slice takes 1 ms, and two slices in one
# step take 2 ms. Together with the other handlers of an event-loop iteration this stays below 5 ms, the bound for
# request delay.
RECORDS_PER_SLICE = 400
# Longer codec calls run off the event loop: 32 KiB take gzip 2 ms, and most batches are smaller.
CODEC_BYTES_ON_LOOP_MAX = 32 * 1024


class RecordsNotReadable(HeadraceError):
    """An intact batch cannot be decompressed: its codec is unknown, or the records exceed the limit."""


class FoundBatch(NamedTuple):
    batch: memoryview
    header: BatchHeader
    ends_file: bool


class BatchReader:
    def __init__(self, segment: LogSegment, position: int = 0) -> None:
        self._segment = segment
        self._position = position
        self._chunk = b""
        self._chunk_at = 0

    def next(self) -> FoundBatch | None:
        """Returns the next batch, or None at the end of the file. Raises CorruptLog."""
        left = self._segment.size - self._position
        if left <= 0:
            return None
        if left < HEADER_BYTES:
            raise self._damage("half a batch header")
        header = parse_header(self._bytes(HEADER_BYTES))
        total = header.total_bytes
        if header.magic != FORMAT_VERSION or not HEADER_BYTES <= total <= left:
            raise self._damage("no batch header")
        batch = self._bytes(total)
        if batch_crc(batch) != header.crc:
            self._segment.check(self._position, self._position + 1)  # records the unreadable offset range
            raise self._damage("the checksum is wrong")
        self._position += total
        return FoundBatch(batch, header, total == left)

    def _bytes(self, length: int) -> memoryview:
        at = self._position - self._chunk_at
        if at + length > len(self._chunk):
            self._chunk = self._segment.file.read(self._position, max(length, READ_BYTES))
            self._chunk_at, at = self._position, 0
        return memoryview(self._chunk)[at : at + length]

    def _damage(self, reason: str) -> CorruptLog:
        return CorruptLog(f"{self._segment.path}: byte {self._position}: {reason}")


def is_small(batch: memoryview, header: BatchHeader) -> bool:
    """Returns whether the batch is small enough to be decoded or encoded on the event loop."""
    return len(batch) <= CODEC_BYTES_ON_LOOP_MAX and header.record_count <= RECORDS_PER_SLICE


def plain_records(batch: memoryview, header: BatchHeader) -> Task[bytes]:
    """Returns the decompressed records. Raises CorruptLog or RecordsNotReadable, both with the offset of the batch."""
    try:
        if header.codec == Codec.NONE or is_small(batch, header):
            return records_section(batch, header)
        return (yield from off_loop(lambda: records_section(batch, header)))
    except CorruptBatch as damage:
        raise _unreadable(header, damage) from damage
    except HeadraceError as error:
        raise RecordsNotReadable(_cannot_be_read(header, error)) from error


def records_in_slices(section: bytes, header: BatchHeader) -> Iterator[list[Placed]]:
    """Yields the records in lists of at most RECORDS_PER_SLICE. After a full one, the caller may end its step."""
    walk = iter_record_spans(section, header)
    try:
        while records := list(islice(walk, RECORDS_PER_SLICE)):
            yield records
    except CorruptBatch as damage:
        raise _unreadable(header, damage) from damage


def _unreadable(header: BatchHeader, damage: CorruptBatch) -> CorruptLog:
    return CorruptLog(_cannot_be_read(header, damage))


def _cannot_be_read(header: BatchHeader, cause: HeadraceError) -> str:
    return f"the records of the batch at offset {header.base_offset} cannot be read: {cause}"
