"""Partition directories that were renamed (`-stray`, `-delete`): their names and their content.

They are renamed to `<topic>-<partition>.<uuid>-<state>`, so that the original name is free. A file name has at most
255 bytes and a topic name up to 249, so that a long topic name is shortened. The name only helps operators to
recognize the directory; the topic id is in `partition.metadata`. Each stray directory also records since when it is
one.
"""

import logging
import re
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import StorageError
from headrace.model.ids import NO_EPOCH, TopicPartition
from headrace.storage.directory.partition_metadata_file import holds_partition, read_topic_id
from headrace.storage.epoch.leader_epoch_cache import LeaderEpochFileCache
from headrace.storage.io.file_system import FileSystem

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255  # NAME_MAX of Linux file systems

_ASIDE = re.compile(r"(.+)-([0-9]+)\.([0-9a-f]{32})(-delete|-stray)")


class AsideName(NamedTuple):
    """`partition.topic` is the topic's name or, if that is long, its beginning."""

    partition: TopicPartition
    unique: UUID
    suffix: str

    def __str__(self) -> str:
        rest = f"-{self.partition.partition}.{self.unique.hex}{self.suffix}"
        return self.partition.topic[: NAME_BYTES_MAX - len(rest)] + rest


def parse_aside_name(name: str) -> AsideName | None:
    """Parses a name. Returns None for one that no partition directory gets."""
    found = _ASIDE.fullmatch(name)
    if found is None:
        return None
    topic, index, unique, suffix = found.groups()
    return AsideName(TopicPartition(topic, int(index)), UUID(unique), suffix)


log = logging.getLogger(__name__)

# In each stray directory: when a start first found it, in ms. Directories of earlier versions have none yet.
SINCE_FILE = ".headrace_stray"


class StrayTotals(NamedTuple):
    directories: int
    size_bytes: int


class Stray(NamedTuple):
    """A stray directory. `topic_id` and `newest_epoch` are None if they cannot be read."""

    path: str
    name: AsideName
    topic_id: UUID | None
    newest_epoch: int | None
    is_partition: bool  # whether it was created for a partition
    has_records: bool
    size_bytes: int
    since_ms: int


def find_strays(files: FileSystem, data_dir: str, now_ms: int) -> list[Stray]:
    """Returns all stray directories. Records `now_ms` in those that are new. Blocks on the disk."""
    found = []
    for name in files.list(data_dir):
        aside = parse_aside_name(name)
        if aside is not None and aside.suffix == STRAY_SUFFIX:
            try:
                found.append(_read(files, f"{data_dir}/{name}", aside, now_ms))
            except (StorageError, FileNotFoundError) as error:
                log.error("Stray directory %s/%s not readable; it is kept: %s", data_dir, name, error)
    return found


def _read(files: FileSystem, path: str, name: AsideName, now_ms: int) -> Stray:
    sizes = {name: _size(files, f"{path}/{name}") for name in files.list(path)}
    return Stray(
        path,
        name,
        _topic_id(files, path),
        _newest_epoch(files, path),
        is_partition=holds_partition(sizes),
        has_records=any(size for name, size in sizes.items() if name.endswith(".log")),
        size_bytes=sum(sizes.values()),
        since_ms=_since_ms(files, path, now_ms),
    )


def _size(files: FileSystem, path: str) -> int:
    file = files.open(path)
    try:
        return file.size
    finally:
        file.close()


def _topic_id(files: FileSystem, path: str) -> UUID | None:
    try:
        return read_topic_id(files, path)
    except StorageError:
        return None


def _newest_epoch(files: FileSystem, path: str) -> int | None:
    try:
        latest = LeaderEpochFileCache(files, path).latest
    except StorageError:
        return None
    return None if latest == NO_EPOCH else latest


def _since_ms(files: FileSystem, path: str, now_ms: int) -> int:
    """Returns the recorded time; writes `now_ms` if there is none, or one that is corrupt or in the future."""
    try:
        since_ms = int(files.read(f"{path}/{SINCE_FILE}"))
        if 0 < since_ms <= now_ms:
            return since_ms
    except (FileNotFoundError, ValueError):
        pass
    files.replace(f"{path}/{SINCE_FILE}", str(now_ms).encode())
    return now_ms
