"""The `-stray` directories in a data directory: what they hold, and since when they are strays."""

import logging
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import StorageError
from headrace.model.ids import NO_EPOCH
from headrace.storage.aside_names import STRAY_SUFFIX, AsideName, parse_aside_name
from headrace.storage.files import Files
from headrace.storage.leader_epochs import LeaderEpochs
from headrace.storage.partition_metadata import holds_partition, read_topic_id

log = logging.getLogger(__name__)

# In each stray directory: when it was first seen there, in ms. Directories of earlier versions have none yet.
SINCE_FILE = ".headrace_stray"


class StrayTotals(NamedTuple):
    directories: int
    size_bytes: int


class Stray(NamedTuple):
    """`topic_id` and `newest_epoch` are None where they cannot be read."""

    path: str
    name: AsideName
    topic_id: UUID | None
    newest_epoch: int | None
    is_partition: bool  # whether it was made for one
    has_records: bool
    size_bytes: int
    since_ms: int


def find_strays(files: Files, data_dir: str, now_ms: int) -> list[Stray]:
    """All of them. One that is seen for the first time is marked with `now_ms`. Waits for the disk."""
    found = []
    for name in files.list(data_dir):
        aside = parse_aside_name(name)
        if aside is not None and aside.suffix == STRAY_SUFFIX:
            try:
                found.append(_read(files, f"{data_dir}/{name}", aside, now_ms))
            except (StorageError, FileNotFoundError) as error:
                log.error("Stray directory %s/%s not readable; it is kept: %s", data_dir, name, error)
    return found


def _read(files: Files, path: str, name: AsideName, now_ms: int) -> Stray:
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


def _size(files: Files, path: str) -> int:
    file = files.open(path)
    try:
        return file.size
    finally:
        file.close()


def _topic_id(files: Files, path: str) -> UUID | None:
    try:
        return read_topic_id(files, path)
    except StorageError:
        return None


def _newest_epoch(files: Files, path: str) -> int | None:
    try:
        latest = LeaderEpochs(files, path).latest
    except StorageError:
        return None
    return None if latest == NO_EPOCH else latest


def _since_ms(files: Files, path: str, now_ms: int) -> int:
    """A time that is damaged, or that the clock has not reached, starts over."""
    try:
        since_ms = int(files.read(f"{path}/{SINCE_FILE}"))
        if 0 < since_ms <= now_ms:
            return since_ms
    except (FileNotFoundError, ValueError):
        pass
    files.replace(f"{path}/{SINCE_FILE}", str(now_ms).encode())
    return now_ms
