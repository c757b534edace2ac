"""A snapshot of an Iceberg table. PyIceberg applies deletes, renamed columns and partitions."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import fs
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io import pyarrow as iceberg_arrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan
from pyiceberg.table import FileScanTask, StaticTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import ListType, MapType

from headrace.lake.iceberg import find_catalog, has_catalog, translate_catalog_errors
from headrace.lake.parquet import open_folder
from headrace.lake.row_types import fitted_to, nullable, stored_schema
from headrace.lake.table_version import UnreadableTable

_NUMBER = re.compile(r"\d+")
EMPTY = "empty"  # the version of a table without a snapshot


class IcebergVersion:
    def __init__(self, place: str, version: str | None = None) -> None:
        with translate_catalog_errors(place):
            self._place, self._table = place, _open(place)
        newest = self._table.current_snapshot()
        self._snapshot_id = int(version) if version not in (None, EMPTY) else newest.snapshot_id if newest else None
        self.version = EMPTY if self._snapshot_id is None or version == EMPTY else str(self._snapshot_id)
        # The newest schema even for an older snapshot, because the query was planned with it.
        self.schema = nullable(stored_schema(self._table.schema().as_arrow(), small_integers=True))

    def parts(self) -> Sequence["IcebergPart"]:
        if self.version == EMPTY:
            return []
        if self._table.snapshot_by_id(int(self.version)) is None:
            raise UnreadableTable(f"{self._place} has no snapshot {self.version} any more")
        try:
            tasks = list(self._table.scan(snapshot_id=self._snapshot_id).plan_files())
        except (NotImplementedError, ValueError) as error:  # equality deletes, which PyIceberg does not apply
            raise UnreadableTable(
                f"{self._place} cannot be read: {error}; compact the table where it is written"
            ) from error
        table = self._table
        return [
            IcebergPart(task.file.file_path, task.file.file_size_in_bytes, task, table.metadata, table.io)
            for task in tasks
        ]


def _open(place: str) -> Table:
    if has_catalog(place):
        catalog, name = find_catalog(place)
        return catalog.load_table(name)
    return StaticTable.from_metadata(_newest_metadata(place))


def _newest_metadata(place: str) -> str:
    """Returns the path to load a table of another catalog from: its directory if that has a version hint, else the
    metadata file with the highest number.
    """
    filesystem, path = open_folder(place)
    found = filesystem.get_file_info(fs.FileSelector(f"{path}/metadata", allow_not_found=True))
    files = {one.base_name: one.path for one in found if one.path.endswith(".metadata.json")}
    if f"{path}/metadata/version-hint.text" in {one.path for one in found}:
        return place
    if not files:
        raise UnreadableTable(f"{place} is no Iceberg table: it has neither a catalog.db nor metadata")
    newest: str = files[max(files, key=_number_in)]
    return newest


def _number_in(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found.group()) if found else -1


@dataclass(frozen=True, slots=True)
class IcebergPart:
    path: str
    size: int
    task: FileScanTask
    metadata: TableMetadata
    io: FileIO

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        _keep_nulls()
        there = self.metadata.schema()
        names = [name for name in schema.names if name in there.column_names]
        scan = ArrowScan(self.metadata, self.io, there.select(*names), AlwaysTrue())
        for batch in scan.to_record_batches([self.task]):
            columns = [fitted_to(batch.column(one.name), one.type) for one in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _NullKeepingVisitor(ArrowProjectionVisitor):
    """Fixes PyIceberg 0.12, which reads null lists and maps of structs as empty ones."""

    def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _with_nulls_of(before: Any, after: Any) -> Any:
    if after is None or before is None or before.null_count == after.null_count:
        return after
    return pc.if_else(pc.is_valid(before), after, pa.scalar(None, after.type))


def _keep_nulls() -> None:
    """Replaces the class in PyIceberg's module, which instantiates it internally. Applies to the whole process."""
    iceberg_arrow.ArrowProjectionVisitor = _NullKeepingVisitor  # type: ignore[misc]
