"""Upkeep of an Iceberg table. PyIceberg expires snapshots and has no merge of files, and it removes no file: both
are done here, the merge as one snapshot that takes the old files out and puts the new one in.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table

from headrace.spark.lake.files import FILE_OPTIONS, open_folder
from headrace.spark.lake.iceberg_catalog import trouble_told
from headrace.spark.lake.row_types import nullable, stored_schema
from headrace.spark.lake.upkeep import Upkeep


class IcebergUpkeep:
    def __init__(self, table: Table) -> None:
        self._table = table

    def small_files(self, upkeep: Upkeep) -> int:
        with trouble_told(self._table.location()):
            self._table.refresh()
        found = len(self._small(upkeep))
        return found if found > upkeep.small_files_max else 0

    def _small(self, upkeep: Upkeep) -> list[IcebergFile]:
        files = [task.file for task in self._table.scan().plan_files()]
        return [file for file in files if file.file_size_in_bytes < upkeep.small_bytes]

    def compact(self, upkeep: Upkeep) -> int:
        """Of tables without partitions: all small files into one, row group by row group."""
        small = self._small(upkeep)
        # Without Iceberg's field ids: other files of ours have none, and mixed they would be read by two rules.
        schema = nullable(stored_schema(self._table.schema().as_arrow(), small_integers=False))
        path = f"{self._table.location()}/data/compacted-{uuid4().hex}.parquet"
        filesystem, place = open_folder(path)
        with pq.ParquetWriter(place, schema, filesystem=filesystem, **FILE_OPTIONS) as writer:
            for file in small:
                writer.write_table(_conformed(_read(file.file_path), schema))
        with (
            trouble_told(self._table.location()),
            self._table.transaction() as transaction,
            transaction.update_snapshot().overwrite() as change,
        ):
            for file in small:
                change.delete_data_file(file)
            change.append_data_file(parquet_file_to_data_file(self._table.io, self._table.metadata, path))
        return len(small)

    def expire(self, upkeep: Upkeep) -> int:
        before = datetime.now(UTC) - timedelta(seconds=upkeep.keep_s)
        with trouble_told(self._table.location()):
            self._table.maintenance.expire_snapshots().older_than(before).commit()
            self._table.refresh()
        return self._remove_unnamed(before)

    def _remove_unnamed(self, before: datetime) -> int:
        """Data and manifests that no snapshot names and that are too old to belong to a commit under way."""
        named = {path.removeprefix("file://") for path in self._named()}
        removed = 0
        for folder, endings in (("data", (".parquet",)), ("metadata", (".avro",))):
            filesystem, place = open_folder(f"{self._table.location()}/{folder}")
            selector = fs.FileSelector(place, recursive=True, allow_not_found=True)
            for info in filesystem.get_file_info(selector):
                is_old = info.mtime is not None and info.mtime < before
                if info.path.endswith(endings) and is_old and info.path not in named:
                    filesystem.delete_file(info.path)
                    removed += 1
        return removed

    def _named(self) -> Iterator[str]:
        for snapshot in self._table.snapshots():
            yield snapshot.manifest_list
            for manifest in snapshot.manifests(self._table.io):
                yield manifest.manifest_path
                yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(self._table.io))


def _read(path: str) -> pa.Table:
    filesystem, place = open_folder(path)
    return pq.read_table(place, filesystem=filesystem)


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns that the table got later, empty."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
