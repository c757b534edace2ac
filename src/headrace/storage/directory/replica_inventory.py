"""The replicas that have had records on this disk: `.headrace_replicas`.

A partition directory is not synced before its first record, so that a start that finds none cannot distinguish a new
replica from a lost one. This file can: it contains a replica, durably, before the first synced record of the replica
is acknowledged. Rows have topic ids, so that a later topic of the same name inherits none. A replica is removed from
the file before its log is emptied on purpose.

Before a start creates anything in place of lost files, it writes LOST. The row stays after a crash of that start,
until the replica begins a new log that follows its leader.

Rows are appended, and the last row of a replica is valid. A new replica among ten thousand costs one sync of one row.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import DiskFull
from headrace.records.crc import crc32c
from headrace.storage.directory.partition_metadata_file import uuid_from_text, uuid_to_text
from headrace.storage.io.file_system import FileSystem

log = logging.getLogger(__name__)

FILE_NAME = ".headrace_replicas"


class ReplicaId(NamedTuple):
    topic_id: UUID
    partition: int


class Known(Enum):
    HELD = "held"  # it has had records on this disk
    LOST = "lost"  # and its files are missing
    GONE = "gone"  # its records were removed on purpose


class ReplicaInventory:
    """Thread-safe. `note` and `forget` do not block on the disk; `write` and `rewrite` do."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._lock = threading.Lock()  # guards the fields below
        self._writing = threading.Lock()
        self._wanted: set[ReplicaId] = set()  # those with a mark in a sync that is in flight
        self.was_recorded = files.exists(self._path)  # False if only versions without this file have used the directory
        found = _decode(files.read(self._path)) if self.was_recorded else _Found({}, False, False)
        self._rows, self.was_corrupt = found.rows, found.is_corrupt
        if self.was_corrupt:
            log.error("%s is corrupt; every replica without files counts as lost", self._path)
        self._may_append = self.was_recorded and found.is_whole
        self._written = dict(self._rows)  # as of the last rewrite of the file
        self._unwritten: dict[ReplicaId, Known] = {}

    def is_held(self, replica: ReplicaId) -> bool:
        """Returns whether the file durably contains the replica as HELD."""
        return self._rows.get(replica) is Known.HELD and replica not in self._unwritten

    def is_lost(self, replica: ReplicaId) -> bool:
        return self._rows.get(replica) is Known.LOST

    def mark(self, replica: ReplicaId) -> "ReplicaMark":
        return ReplicaMark(self, replica)

    def note(self, replica: ReplicaId, known: Known) -> None:
        """Changes the state of a replica; durable after `write`."""
        with self._lock:
            self._note(replica, known)

    def _note(self, replica: ReplicaId, known: Known) -> None:
        if self._rows.get(replica, Known.GONE) is not known:
            self._rows[replica] = self._unwritten[replica] = known

    def forget(self, replica: ReplicaId) -> None:
        """Removes a replica whose log will be emptied, or that left this broker. Durable after `write`."""
        with self._lock:
            self._wanted.discard(replica)
            self._note(replica, Known.GONE)

    def want(self, replica: ReplicaId) -> None:
        with self._lock:
            self._wanted.add(replica)

    def add_wanted(self, replica: ReplicaId) -> None:
        """Adds a wanted replica durably, unless it was removed since `want`. Blocks on the disk."""
        with self._lock:
            if replica not in self._wanted:
                return
            self._note(replica, Known.HELD)
        try:
            self.write()
        except DiskFull as error:
            log.warning("%s not written; retrying with the next sync of the partition: %s", self._path, error)

    @property
    def is_settled(self) -> bool:
        """Returns whether every removal is on disk."""
        with self._lock:
            return Known.GONE not in self._unwritten.values()

    def write(self) -> None:
        """Writes all changes made before the call. Blocks on the disk."""
        with self._writing:
            with self._lock:
                rows, everything = dict(self._unwritten), dict(self._rows)
            if not rows:
                return
            if self._may_append:
                self._append(rows)
            else:
                self._replace(everything)
            self._were_written(rows)

    def _were_written(self, rows: Mapping[ReplicaId, Known]) -> None:
        with self._lock:
            for replica, known in rows.items():
                if self._unwritten.get(replica) is known:
                    del self._unwritten[replica]

    def rewrite(self, keep: Callable[[ReplicaId], bool]) -> None:
        """Rewrites the file at a start: without obsolete rows, if it has any, and with all changes."""
        with self._writing:
            with self._lock:
                for replica, known in list(self._rows.items()):
                    if known is Known.GONE or not keep(replica):
                        del self._rows[replica]
                kept, rows = dict(self._rows), dict(self._unwritten)
            if not self._may_append or kept != self._written:
                self._replace(kept)
            self._were_written(rows)

    def _append(self, rows: Mapping[ReplicaId, Known]) -> None:
        self._may_append = False  # after a failure, nothing is appended after a partial row
        file = self._files.open(self._path)
        try:
            file.append(_encoded(rows.items()))
            file.sync()
        finally:
            file.close()
        self._may_append = True

    def _replace(self, rows: Mapping[ReplicaId, Known]) -> None:
        self._files.replace(self._path, _encoded(rows.items()))
        self._may_append, self._written = True, dict(rows)


class ReplicaMark:
    """Adds the replica after the records of a sync. May be called from another thread."""

    __slots__ = ("_replica", "_replicas")

    def __init__(self, replicas: ReplicaInventory, replica: ReplicaId) -> None:
        self._replicas = replicas
        self._replica = replica

    @property
    def is_made(self) -> bool:
        return self._replicas.is_held(self._replica)

    def begin(self) -> "ReplicaMark":
        self._replicas.want(self._replica)
        return self

    def sync(self) -> None:
        self._replicas.add_wanted(self._replica)


def _encoded(rows: Iterable[tuple[ReplicaId, Known]]) -> bytes:
    texts = [f"{uuid_to_text(replica.topic_id)} {replica.partition} {known.value}" for replica, known in rows]
    return "".join(f"{text} {crc32c(text.encode())}\n" for text in texts).encode()


class _Found(NamedTuple):
    rows: dict[ReplicaId, Known]
    is_whole: bool  # whether a row may be appended
    is_corrupt: bool


def _decode(data: bytes) -> _Found:
    """Parses the file. A crash may leave part of the last row. An invalid row elsewhere is corrupt."""
    rows: dict[ReplicaId, Known] = {}
    *lines, rest = data.split(b"\n")
    has_bad_row = False
    for line in lines:
        row = _row(line)
        if row is None:
            has_bad_row = True
        else:
            rows[row[0]] = row[1]
    return _Found(rows, is_whole=not (rest or has_bad_row), is_corrupt=has_bad_row)


def _row(line: bytes) -> tuple[ReplicaId, Known] | None:
    text, _, checksum = line.decode(errors="replace").rpartition(" ")
    try:
        if int(checksum) != crc32c(text.encode()):
            return None
        topic_id, partition, known = text.split(" ")
        return ReplicaId(uuid_from_text(topic_id), int(partition)), Known(known)
    except ValueError:
        return None
