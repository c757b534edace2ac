"""The `.snapshot` files: what is known of every idempotent producer up to the offset in the file's name.

Decides the bytes, and which of the files are worth keeping; what the rows mean is `producer_state.py`'s
business. The layout is Kafka's:

    int16   version (1)
    uint32  crc32c of everything after it
    int32   number of rows
    rows    int64   producer id
            int16   epoch
            int32   last sequence of the batch     -1 if it has none
            int64   last offset of the batch       -1 if no batch is known in this epoch
            int32   last offset - first offset
            int64   timestamp of the producer's last write
            int32   epoch of the coordinator that wrote the last marker, -1 if none did
            int64   first offset of the open transaction, -1 if none is open

Kafka writes one row a producer, for the last batch. Here every remembered batch gets a row, oldest first:
Kafka's reader lets a later row of a producer replace the earlier, so it sees what it would have written
itself, while our own restart forgets none of the batches that a client may still send again. Behind the rows
stands an appendix that Kafka's reader passes over (`snapshot_appendix.py`).
"""

import logging
from collections.abc import Collection, Iterable
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptLog, MissingFile, StorageError
from headrace.records.crc import crc32c
from headrace.storage.file_names import OFFSET_DIGITS, parse_file_name
from headrace.storage.files import Files, NewFile
from headrace.storage.snapshot_appendix import Appendix, decode_appendix, encode_appendix

log = logging.getLogger(__name__)

SNAPSHOT_VERSION = 1
SNAPSHOT_SUFFIX = ".snapshot"
_HEAD = Struct(">hIi")
_CRC_END = 6  # the checksum covers the count and the rows
_COUNT = Struct(">i")
_ROW = Struct(">qhiqiqiq")

NONE = -1  # how the format says "no sequence", "no offset", "no open transaction"


class SnapshotRow(NamedTuple):
    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


class Snapshot(NamedTuple):
    offset: int  # the state is the one before this offset
    rows: list[SnapshotRow]
    appendix: Appendix | None  # None: Kafka or an earlier version wrote it


def encode_snapshot(rows: Collection[SnapshotRow], appendix: Appendix | None = None) -> bytes:
    body = bytearray(_COUNT.pack(len(rows)))
    for row in rows:
        body += _ROW.pack(*row)
    if appendix is not None:
        body += encode_appendix(appendix)
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body), len(rows)) + body[_COUNT.size :]


def decode_snapshot(data: bytes) -> list[SnapshotRow]:
    """The rows in file order; CorruptLog if a single bit is not as it was written."""
    return decode_with_appendix(data)[0]


def decode_with_appendix(data: bytes) -> tuple[list[SnapshotRow], Appendix | None]:
    if len(data) < _HEAD.size:
        raise CorruptLog(f"a producer snapshot cannot have only {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptLog(f"unknown version {version} of a producer snapshot")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise CorruptLog("the checksum of a producer snapshot is wrong")
    end = _HEAD.size + count * _ROW.size
    if not 0 <= count <= end <= len(data):
        raise CorruptLog(f"a producer snapshot of {len(data)} bytes cannot hold {count} rows")
    rows = [SnapshotRow._make(row) for row in _ROW.iter_unpack(memoryview(data)[_HEAD.size : end])]
    return rows, decode_appendix(memoryview(data)[end:])


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:0{OFFSET_DIGITS}d}{SNAPSHOT_SUFFIX}"


class UnsyncedSnapshot:
    """A snapshot that was written without a sync, and is part of the log's next one.

    Retention may remove the batches that it describes: then nothing else says what their producers have written.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        try:
            NewFile(self._files, self._path).sync()
        except MissingFile:
            pass  # its segment has left the log meanwhile
        except StorageError as error:
            log.warning("Cannot sync %s; recovery may use an older snapshot: %s", self._path, error)


def snapshot_offsets(files: Files, directory: str) -> list[int]:
    """The offsets of the snapshots in a partition's folder, ascending."""
    names = [parse_file_name(name) for name in files.list(directory)]
    return sorted(name.offset for name in names if name is not None and name.kind == SNAPSHOT_SUFFIX)


def newest_snapshot(
    files: Files, directory: str, at_most: int, *, at_least: int = 0, removes_unreadable: bool = True
) -> Snapshot | None:
    """Returns the newest readable snapshot in `at_least`..`at_most`; removes unreadable ones.

    `at_least` is where the first segment begins. A state from below misses the records in between, which are deleted:
    it would reject the next sequence of a producer, and keep a transaction open that has ended.
    """
    for offset in reversed(snapshot_offsets(files, directory)):
        if not at_least <= offset <= at_most:
            continue
        path = snapshot_path(directory, offset)
        try:
            return Snapshot(offset, *decode_with_appendix(files.read(path)))
        except CorruptLog as damage:
            log.error("%s: %s; an older one is used", path, damage)
            if removes_unreadable:
                files.remove(path)
    return None


def remove_snapshots(files: Files, directory: str, *, before: int = 0, after: int | None = None) -> None:
    """Those that lie before the log's start, or past a truncated end, describe a log that is gone."""
    for offset in snapshot_offsets(files, directory):
        if offset < before or (after is not None and offset > after):
            files.remove(snapshot_path(directory, offset))


def remove_stray_snapshots(files: Files, directory: str, segment_bases: Iterable[int]) -> None:
    """One belongs to each segment, at its first offset; a clean stop leaves one more, past them all."""
    bases = set(segment_bases)
    newest_base = max(bases, default=-1)
    offsets = snapshot_offsets(files, directory)
    strays = [offset for offset in offsets if offset not in bases]
    if strays and strays[-1] > newest_base:
        strays.pop()
    for offset in strays:
        files.remove(snapshot_path(directory, offset))
