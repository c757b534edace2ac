"""Producer snapshot files (`.snapshot`): their format, headrace's appendix, and when they are written.

A snapshot has the state of every idempotent producer up to the offset in the file's name. The rows are defined in
`producer_state_manager.py`. The format is Kafka's:

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

Kafka writes one row per producer, for the last batch. headrace writes a row for every remembered batch, oldest first.
In Kafka's reader a later row of a producer replaces the earlier one, so that it reads the row that Kafka would have
written. After a restart headrace has every batch that a client may retry.

The rows are followed by an appendix, which Kafka's reader skips. Snapshots that Kafka wrote have none:

    uint32  0x48524150, "HRAP"
    int32   number of indexes
    indexes int64   base offset of a segment
            int32   number of entries in its .txnindex below the offset of the snapshot
            uint32  crc32c of these entries
    int32   number of idle producers
    idle    int64   producer id
            int64   how long it had appended nothing, in ms

A segment that is not listed has no aborted transactions. This distinguishes a missing index from one that never
existed.

Recovery reads markers only from a snapshot on, so the index below it has to be durable first. The event loop waits
for no fsync: the index is part of the log's next sync, and the snapshot is written after that sync has succeeded.
Without a snapshot that a crash prevented, recovery uses the one before it and reads more batches.

Compaction changes the indexes, and then updates their checksums in the newest snapshot (`vouch_for_indexes`).
Otherwise the next start after a crash would find entries that do not match, and read the batches again.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from struct import Struct, error
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import CorruptLog, MissingFile, StorageError
from headrace.records.crc import crc32c
from headrace.storage.io.file_system import DirectorySync, Durable, FileSync, FileSystem, write_synced
from headrace.storage.io.stepwise import Task, off_loop
from headrace.storage.segment.file_names import OFFSET_DIGITS, parse_file_name
from headrace.storage.segment.transaction_index import IndexSum

if TYPE_CHECKING:
    from headrace.storage.log import Log


MAGIC = 0x48524150
_APPENDIX_HEAD = Struct(">Ii")
_COUNT = Struct(">i")
_INDEX = Struct(">qiI")
_IDLE = Struct(">qq")


class Appendix(NamedTuple):
    index_sums: Mapping[int, IndexSum]  # by the base offset of the segment
    idle_ms: Mapping[int, int]  # by producer id


def encode_appendix(appendix: Appendix) -> bytes:
    indexes = [_INDEX.pack(base, *found) for base, found in appendix.index_sums.items()]
    idle = [_IDLE.pack(*one) for one in appendix.idle_ms.items()]
    return b"".join([_APPENDIX_HEAD.pack(MAGIC, len(indexes)), *indexes, _COUNT.pack(len(idle)), *idle])


def decode_appendix(data: memoryview) -> Appendix | None:
    """Parses the appendix; returns None if there is none."""
    if not len(data):
        return None
    try:
        magic, count = _APPENDIX_HEAD.unpack_from(data)
        end_of_indexes = _APPENDIX_HEAD.size + count * _INDEX.size
        indexes = list(_INDEX.iter_unpack(data[_APPENDIX_HEAD.size : end_of_indexes]))
        (idle_count,) = _COUNT.unpack_from(data, end_of_indexes)
        idle = dict(_IDLE.iter_unpack(data[end_of_indexes + _COUNT.size :]))
    except error as malformed:
        raise CorruptLog(f"a producer snapshot has a malformed appendix: {malformed}") from malformed
    if magic != MAGIC or len(indexes) != count or len(idle) != idle_count:
        raise CorruptLog(f"a producer snapshot has an unknown appendix of {len(data)} bytes")
    return Appendix({base: IndexSum(entries, crc) for base, entries, crc in indexes}, idle)


log = logging.getLogger(__name__)

SNAPSHOT_VERSION = 1
SNAPSHOT_SUFFIX = ".snapshot"
_HEAD = Struct(">hIi")
_CRC_END = 6  # the checksum covers the count and the rows
_ROW = Struct(">qhiqiqiq")

NONE = -1  # in the format: no sequence, no offset, no open transaction


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
    """Returns the rows in file order. Raises CorruptLog if the checksum does not match."""
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

    Retention may remove the batches that it describes: then it is the only record of what their producers have
    written.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        try:
            FileSync(self._files, self._path).sync()
        except MissingFile:
            pass  # its segment has left the log
        except StorageError as error:
            log.warning("Cannot sync %s; recovery may use an older snapshot: %s", self._path, error)


def snapshot_offsets(files: FileSystem, directory: str) -> list[int]:
    """Returns the offsets of the snapshots in a partition directory, ascending."""
    names = [parse_file_name(name) for name in files.list(directory)]
    return sorted(name.offset for name in names if name is not None and name.kind == SNAPSHOT_SUFFIX)


def newest_snapshot(
    files: FileSystem, directory: str, at_most: int, *, at_least: int = 0, removes_unreadable: bool = True
) -> Snapshot | None:
    """Returns the newest readable snapshot in `at_least`..`at_most`; removes unreadable ones.

    `at_least` is the base offset of the first segment. A state from below lacks the deleted records in between: it
    would reject the next sequence of a producer, and keep a transaction open that has ended.
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


def remove_snapshots(files: FileSystem, directory: str, *, before: int = 0, after: int | None = None) -> None:
    """Removes snapshots before the log start, or past a truncated end.

    They describe records that are not in the log.
    """
    for offset in snapshot_offsets(files, directory):
        if offset < before or (after is not None and offset > after):
            files.remove(snapshot_path(directory, offset))


def remove_stray_snapshots(files: FileSystem, directory: str, segment_bases: Iterable[int]) -> None:
    """Keeps one snapshot per segment, at its base offset, and the one that a clean shutdown leaves past them all."""
    bases = set(segment_bases)
    newest_base = max(bases, default=-1)
    offsets = snapshot_offsets(files, directory)
    strays = [offset for offset in offsets if offset not in bases]
    if strays and strays[-1] > newest_base:
        strays.pop()
    for offset in strays:
        files.remove(snapshot_path(directory, offset))


class DueSnapshot:
    """Is synced after the transaction index, and then due to be written. May be called from another thread."""

    __slots__ = ("data", "is_due", "offset")

    def __init__(self, offset: int, data: bytes) -> None:
        self.offset, self.data, self.is_due = offset, data, False

    def sync(self) -> None:
        self.is_due = True


class DueSnapshots:
    """The due snapshots of one log. Used on the event loop, so that no snapshot of truncated records is written."""

    __slots__ = ("_directory", "_files", "_waiting")

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._waiting: list[DueSnapshot] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, offset: int, data: bytes) -> DueSnapshot:
        """Returns what to sync after the index of aborted transactions."""
        snapshot = DueSnapshot(offset, data)
        self._waiting.append(snapshot)
        return snapshot

    def write(self) -> list[Durable]:
        """Writes the snapshots that were part of a successful sync. Returns what the next sync includes."""
        due = [one for one in self._waiting if one.is_due]
        self._waiting = [one for one in self._waiting if not one.is_due]
        written: list[Durable] = []
        for snapshot in due:
            path = snapshot_path(self._directory, snapshot.offset)
            try:
                self._files.replace(path, snapshot.data, sync=False)
            except StorageError as error:
                log.warning("Cannot write %s; recovery uses an older snapshot: %s", path, error)
            else:
                written.append(UnsyncedSnapshot(self._files, path))
        if written:  # behind the sync that made the names of the roll durable
            written.append(DirectorySync(self._files, self._directory))
        return written

    def clear(self) -> None:
        """Drops all due snapshots, because the log was truncated or abandoned."""
        self._waiting = []


PREPARED_SUFFIX = ".vouched.tmp"  # the next start removes files with this suffix


def vouch_for_indexes(log: "Log") -> Task[None]:
    """Writes the current sums of the inactive segments' indexes into the newest snapshot, atomically and durably."""
    newest = newest_snapshot(log.files, log.directory, log.log_end_offset, removes_unreadable=False)
    if newest is None or newest.appendix is None:
        return
    path = snapshot_path(log.directory, newest.offset)
    sums = {one.base_offset: one.aborted.sum for one in log.segments if one.next_offset <= newest.offset}
    part = {base: found for base, found in newest.appendix.index_sums.items() if base == _last_base(log, newest.offset)}
    known = {base: found for base, found in (sums | part).items() if found}
    data = encode_snapshot(newest.rows, Appendix(known, newest.appendix.idle_ms))
    before = log.files.read(path)
    yield from off_loop(lambda: write_synced(log.files, path + PREPARED_SUFFIX, data))
    # A concurrent truncation may have removed it, because its records are gone.
    if log.files.exists(path) and log.files.read(path) == before:
        log.files.rename(path + PREPARED_SUFFIX, path)
    else:
        log.files.remove(path + PREPARED_SUFFIX)


def _last_base(log: "Log", offset: int) -> int:
    """Returns the base offset of the segment that contains the snapshot's offset. Its index may have grown since."""
    return next((one.base_offset for one in log.segments if one.base_offset < offset < one.next_offset), -1)
