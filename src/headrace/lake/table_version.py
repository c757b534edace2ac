"""One version of a lake table, as rows: what the table's own log says is in it, and not what its directory holds.

`LakeVersion` is what the driver looks at, `Part` what a task reads; parts travel pickled.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyarrow import fs

from headrace.lake.parquet import open_folder
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

# What a task reads, so that a table of many small files does not become as many tasks. Opening a file counts, too.
PART_BYTES = 32 * 1024 * 1024
OPENING_BYTES = 1024 * 1024


class UnreadableTable(InvalidConfig):
    """The table uses something of its format that headrace cannot read."""


class Part(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def batches(self, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
        """The rows that the version has of this file, in columns and types of `schema`."""


class LakeVersion(Protocol):
    version: str
    schema: "pa.Schema"

    def parts(self) -> Sequence[Part]: ...


def is_lake_table(place: str) -> bool:
    return _is_delta(place) or _is_iceberg(place)


def open_version(place: str, version: str | None = None) -> LakeVersion:
    """The newest version, or a given one; an error if there is no such version."""
    if _is_delta(place):
        from headrace.lake.delta_reader import DeltaVersion

        return DeltaVersion(place, version)
    from headrace.lake.iceberg_reader import IcebergVersion

    return IcebergVersion(place, version)


def _is_delta(place: str) -> bool:
    filesystem, path = open_folder(place)
    return bool(filesystem.get_file_info(f"{path.rstrip('/')}/_delta_log").type == fs.FileType.Directory)


def _is_iceberg(place: str) -> bool:
    if "/" not in place and place.count(".") >= 2 and not Path(place).exists():
        return True  # catalog.namespace.table of PyIceberg's configuration
    filesystem, path = open_folder(place)
    if filesystem.get_file_info(f"{path}/catalog.db").type == fs.FileType.File:
        return True
    found = filesystem.get_file_info(fs.FileSelector(f"{path}/metadata", allow_not_found=True))
    return any(one.path.endswith(".metadata.json") for one in found)


def all_there(parts: Sequence[Part]) -> bool:
    """Whether no vacuum has removed a file of this version."""
    for part in parts:
        filesystem, path = open_folder(part.path)
        if filesystem.get_file_info(path).type != fs.FileType.File:
            return False
    return True


def packed(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts of one task each."""
    tasks: list[list[Part]] = []
    left = 0
    for part in parts:
        size = max(part.size, OPENING_BYTES)
        if size > left:
            tasks.append([])
            left = PART_BYTES
        tasks[-1].append(part)
        left -= size
    return tasks
