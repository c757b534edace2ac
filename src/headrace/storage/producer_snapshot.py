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
itself, while our own restart forgets none of the batches that a client may still send again.
"""

import logging
from collections.abc import Collection, Iterable
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptLog
from headrace.records.crc import crc32c
from headrace.storage.files import Files

log = logging.getLogger(__name__)

SNAPSHOT_VERSION = 1
SNAPSHOT_SUFFIX = ".snapshot"
OFFSET_DIGITS = 20  # zero-padded to the longest int64, so that names sort as their offsets do
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


def encode_snapshot(rows: Collection[SnapshotRow]) -> bytes:
    body = bytearray(_COUNT.pack(len(rows)))
    for row in rows:
        body += _ROW.pack(*row)
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body), len(rows)) + body[_COUNT.size :]


def decode_snapshot(data: bytes) -> list[SnapshotRow]:
    """The rows in file order; CorruptLog if a single bit is not as it was written."""
    if len(data) < _HEAD.size:
        raise CorruptLog(f"a producer snapshot cannot have only {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptLog(f"unknown version {version} of a producer snapshot")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise CorruptLog("the checksum of a producer snapshot is wrong")
    if count * _ROW.size != len(data) - _HEAD.size:
        raise CorruptLog(f"a producer snapshot of {len(data)} bytes cannot hold {count} rows")
    return [SnapshotRow._make(row) for row in _ROW.iter_unpack(memoryview(data)[_HEAD.size :])]


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:0{OFFSET_DIGITS}d}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(files: Files, directory: str) -> list[int]:
    """The offsets of the snapshots in a partition's folder, ascending."""
    return sorted(
        int(name[:OFFSET_DIGITS])
        for name in files.list(directory)
        if name.endswith(SNAPSHOT_SUFFIX)
        and len(name) == OFFSET_DIGITS + len(SNAPSHOT_SUFFIX)
        and name[:OFFSET_DIGITS].isdecimal()
    )


def newest_snapshot(files: Files, directory: str, at_most: int) -> tuple[int, list[SnapshotRow]] | None:
    """Offset and rows of the newest readable snapshot not past `at_most`; unreadable ones are removed."""
    for offset in reversed(snapshot_offsets(files, directory)):
        if offset > at_most:
            continue
        path = snapshot_path(directory, offset)
        try:
            return offset, decode_snapshot(files.read(path))
        except CorruptLog as damage:
            log.error("%s: %s; it is removed, and an older one is used", path, damage)
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
