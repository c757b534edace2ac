"""A version of a lake table, read by its own log and not by the contents of its directory.

The driver uses `LakeVersion`, a task reads a `Part`. Parts are pickled.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyarrow import fs

from headrace.lake.parquet import open_folder
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

# Target size of a task, so that a table of many small files is not read by as many tasks. Includes the cost of opening.
PART_BYTES = 32 * 1024 * 1024
OPENING_BYTES = 1024 * 1024


class UnreadableTable(InvalidConfig):
    """The table uses a feature of its format that headrace cannot read."""


class Part(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def batches(self, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
        """Yields the rows of this file in the version, in the columns and types of `schema`."""


class LakeVersion(Protocol):
    version: str
    schema: "pa.Schema"

    def parts(self) -> Sequence[Part]: ...


def is_lake_table(place: str) -> bool:
    return _is_delta(place) or _is_iceberg(place)


def open_version(place: str, version: str | None = None) -> LakeVersion:
    """Opens the newest version, or a given one. Raises an error if there is no such version."""
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
    """Whether all files of this version exist, that is, no vacuum has removed one."""
    for part in parts:
        filesystem, path = open_folder(part.path)
        if filesystem.get_file_info(path).type != fs.FileType.File:
            return False
    return True


def packed(parts: Sequence[Part]) -> list[list[Part]]:
    """Groups parts into tasks."""
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
