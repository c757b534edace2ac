"""Verifies segments, indexes, producer snapshots and epoch files of a partition directory. Read-only.

Does not use the code that writes segments. The format is Kafka's, so the directories of a Kafka broker can be verified
too.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptBatch, CorruptLog, RequestError
from headrace.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, BatchHeader, batch_crc, parse_header
from headrace.records.record import iter_records
from headrace.storage.directory.checkpoint_files import read_rows
from headrace.storage.directory.partition_metadata_file import read_topic_id
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME as EPOCHS_FILE
from headrace.storage.io.file_system import PREALLOCATION_FILL, OsFileSystem, room_of
from headrace.storage.io.preallocation import PREALLOCATED_BYTES, PREALLOCATION_UNIT
from headrace.storage.producer.producer_snapshot_file import decode_snapshot
from headrace.storage.segment.transaction_index import TxnIndex

OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
PROBLEMS_MAX = 100  # a file of random bytes has a problem at every byte; the first hundred suffice


class Problem(NamedTuple):
    file: str
    position: int | None
    what: str

    def __str__(self) -> str:
        place = f" byte {self.position}" if self.position is not None else ""
        return f"{self.file}{place}: {self.what}"


class PositionedBatch(NamedTuple):
    position: int
    header: BatchHeader


class SegmentReport(NamedTuple):
    path: Path
    size: int
    batches: list[PositionedBatch]
    problems: list[Problem]

    @property
    def records(self) -> int:
        return sum(batch.header.record_count for batch in self.batches)

    @property
    def next_offset(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else int(self.path.stem)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Maps the file into memory; yields an empty view for an empty file, which cannot be mapped."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield memoryview(b"")
            return
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
            memoryview(mapping) as view,
        ):
            yield view


def walk_segment(data: memoryview, path: Path, problems: list[Problem]) -> Iterator[tuple[PositionedBatch, memoryview]]:
    """Yields each complete batch with its bytes, until the end, the preallocated tail or a malformed batch."""
    position = 0
    while position < len(data):
        left = len(data) - position
        header = parse_header(data, position) if left >= HEADER_BYTES else None
        if data[position] == PREALLOCATION_FILL and _is_room(data, position):
            return
        total = header.length + LENGTH_OVERHEAD if header is not None else 0
        if header is not None and (total < HEADER_BYTES or header.magic != 2):
            problems.append(Problem(str(path), position, f"not a batch (length {header.length}, magic {header.magic})"))
            return
        if header is None or total > left:
            problems.append(Problem(str(path), position, f"torn write: {left} bytes of an incomplete batch"))
            return
        with data[position : position + total] as batch:
            yield PositionedBatch(position, header), batch
        position += total


def _is_room(data: memoryview, position: int) -> bool:
    """Whether the rest is a preallocated tail: the log is in use, or its broker was killed."""
    length = len(data) - position
    return not len(data) % PREALLOCATION_UNIT and length <= PREALLOCATED_BYTES and data[position:] == room_of(length)


def check_segment(path: Path, *, deep: bool) -> SegmentReport:
    """Verifies a .log file and its indexes."""
    problems: list[Problem] = []
    batches: list[PositionedBatch] = []
    base_offset = int(path.stem)
    next_offset = base_offset
    with mapped(path) as data:
        size = len(data)
        for placed, batch in walk_segment(data, path, problems):
            what = _batch_problem(placed.header, batch, base_offset, next_offset, deep=deep)
            if what is not None and len(problems) < PROBLEMS_MAX:
                problems.append(Problem(str(path), placed.position, what))
            batches.append(placed)
            next_offset = max(next_offset, placed.header.next_offset)
    problems += _check_offset_index(path.with_suffix(".index"), base_offset, batches)
    problems += _check_time_index(path.with_suffix(".timeindex"), base_offset, batches)
    problems += _check_small_files(path, base_offset)
    return SegmentReport(path, size, batches, problems[:PROBLEMS_MAX])


def _batch_problem(
    header: BatchHeader, batch: memoryview, base_offset: int, next_offset: int, *, deep: bool
) -> str | None:
    if batch_crc(batch) != header.crc:
        return f"checksum mismatch (offsets {header.base_offset} to {header.last_offset})"
    if header.base_offset < base_offset or header.base_offset < next_offset:
        return f"offset {header.base_offset}, expected at least {next_offset}"
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"{header.record_count} records in offset range 0 to {header.last_offset_delta}"
    return _records_problem(header, batch) if deep else None


def _records_problem(header: BatchHeader, batch: memoryview) -> str | None:
    previous = header.base_offset - 1
    try:
        for record in iter_records(batch, header):
            if not previous < record.offset <= header.last_offset:
                return f"record offset {record.offset} after {previous}, in a batch that ends at {header.last_offset}"
            previous = record.offset
    except (CorruptBatch, RequestError) as error:
        return f"records cannot be read: {error}"
    return None


def index_entries(path: Path, entry: Struct) -> tuple[list[tuple[int, int]], int]:
    """Returns the entries of an index, and the number of bytes after the last entry. Drops a preallocated tail."""
    data = path.read_bytes()
    whole = len(data) - len(data) % entry.size
    entries: list[tuple[int, int]] = [(first, second) for first, second in entry.iter_unpack(data[:whole])]
    while len(entries) > 1 and entries[-1] == (0, 0):
        entries.pop()
    if entries == [(0, 0)] and whole > entry.size:
        entries = []
    return entries, len(data) - whole


def _check_offset_index(path: Path, base_offset: int, batches: list[PositionedBatch]) -> Iterator[Problem]:
    if not path.exists():
        return
    entries, odd_bytes = index_entries(path, OFFSET_ENTRY)
    if odd_bytes:
        yield Problem(str(path), None, f"{odd_bytes} bytes at the end are no entry")
    starts = {batch.position: batch.header for batch in batches}
    previous = (-1, -1)
    for number, (relative, position) in enumerate(entries):
        at = number * OFFSET_ENTRY.size
        if relative <= previous[0] or position <= previous[1]:
            yield Problem(str(path), at, f"entry {relative}→{position} does not ascend")
        header = starts.get(position)
        if header is None:
            yield Problem(str(path), at, f"no batch starts at byte {position} of the log")
        elif header.last_offset != base_offset + relative:
            yield Problem(
                str(path),
                at,
                f"entry has offset {base_offset + relative}, but the batch ends at {header.last_offset}",
            )
        previous = (relative, position)


def _check_time_index(path: Path, base_offset: int, batches: list[PositionedBatch]) -> Iterator[Problem]:
    if not path.exists():
        return
    entries, odd_bytes = index_entries(path, TIME_ENTRY)
    if odd_bytes:
        yield Problem(str(path), None, f"{odd_bytes} bytes at the end are no entry")
    firsts = [batch.header.base_offset for batch in batches]
    previous = (-1, -1)
    for number, (timestamp, relative) in enumerate(entries):
        at = number * TIME_ENTRY.size
        if timestamp <= previous[0] or relative <= previous[1]:
            yield Problem(str(path), at, f"entry {timestamp}→{relative} does not ascend")
        found = bisect_right(firsts, base_offset + relative) - 1
        header = batches[found].header if found >= 0 else None
        if header is None or header.last_offset < base_offset + relative:
            yield Problem(str(path), at, f"offset {base_offset + relative} is not in this segment")
        elif header.max_timestamp != timestamp:
            yield Problem(str(path), at, f"entry has timestamp {timestamp}, but the batch has {header.max_timestamp}")
        previous = (timestamp, relative)


def _check_small_files(log: Path, base_offset: int) -> Iterator[Problem]:
    snapshot, aborted = log.with_suffix(".snapshot"), log.with_suffix(".txnindex")
    try:
        if snapshot.exists():
            decode_snapshot(snapshot.read_bytes())
    except CorruptLog as error:
        yield Problem(str(snapshot), None, str(error))
    if aborted.exists():
        index = TxnIndex(OsFileSystem(), str(aborted))
        try:
            index.check(base_offset)
        except CorruptLog as error:
            yield Problem(str(aborted), None, str(error))
        finally:
            index.close()


def check_folder(folder: Path, reports: list[SegmentReport]) -> Iterator[Problem]:
    """Verifies the order of the segments, and the files that belong to the whole directory."""
    end = -1
    for report in sorted(reports, key=lambda one: one.path.name):
        if int(report.path.stem) < end:
            yield Problem(str(report.path), None, f"starts before offset {end}, where the previous segment ends")
        end = max(end, report.next_offset)
    try:
        read_topic_id(OsFileSystem(), str(folder))
        rows = [(int(a), int(b)) for a, b in read_rows(OsFileSystem(), str(folder / EPOCHS_FILE), columns=2)]
    except (CorruptLog, ValueError) as error:
        yield Problem(str(folder), None, str(error))
        return
    for before, after in pairwise(rows):
        if after[0] <= before[0] or after[1] <= before[1]:
            yield Problem(str(folder / EPOCHS_FILE), None, f"epoch {after} does not ascend after {before}")
