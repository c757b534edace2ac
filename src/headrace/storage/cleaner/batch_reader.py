"""The batches of a sealed segment, one after the other, checked; and their records, a slice at a time.

For work that reads whole segments in the background. Damage is an error here, never something to step over:
a copy of a damaged batch would have a right checksum and wrong records.
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

# One read: large enough that the call is not what costs, small enough to take a quarter of a millisecond.
READ_BYTES = 256 * 1024
# A record costs 1.7 µs to walk over and to judge, on a slow core twice that: a slice of them takes 1 ms, and two that
# meet in one step 2. With what else has its turn, that stays below the 5 ms that a request may be held up.
RECORDS_PER_SLICE = 400
# Longer calls into a codec leave the loop: 32 KiB take gzip 2 ms, and most batches are smaller.
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
        """None at the end of the file."""
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
            self._segment.check(self._position, self._position + 1)  # notes the hole
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
    """Small enough to be taken apart, or put together, without leaving the loop."""
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
    """The records in lists of at most RECORDS_PER_SLICE: after a full one, others may have their turn."""
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
