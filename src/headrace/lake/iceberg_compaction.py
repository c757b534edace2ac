"""Maintenance of Iceberg tables. PyIceberg expires snapshots, but neither compacts nor removes files; both are done
here. Compaction is one snapshot that replaces the small files by one.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from pyarrow import fs
from pyiceberg.table import FileScanTask, Table

from headrace.lake.iceberg import data_file, translate_catalog_errors
from headrace.lake.iceberg_reader import IcebergPart
from headrace.lake.parquet import FileWriter, open_folder
from headrace.lake.row_types import identified, nullable, stored_schema
from headrace.lake.table import MaintenancePolicy

log = logging.getLogger(__name__)


class IcebergMaintenance:
    def __init__(self, table: Table) -> None:
        self._table = table

    def small_files(self, upkeep: MaintenancePolicy) -> int:
        with translate_catalog_errors(self._table.location()):
            self._table.refresh()
        if self._table.spec().fields:  # a partitioned table, whose layout belongs to another writer
            return 0
        found = len(self._small(upkeep))
        return found if found > upkeep.small_files_max else 0

    def _small(self, upkeep: MaintenancePolicy) -> list[FileScanTask]:
        try:
            tasks = list(self._table.scan().plan_files())
        except (NotImplementedError, ValueError) as error:  # equality deletes, which PyIceberg does not apply
            log.warning("%s: small files are not merged: %s", self._table.location(), error)
            return []
        return [task for task in tasks if task.file.file_size_in_bytes < upkeep.small_bytes]

    def compact(self, upkeep: MaintenancePolicy) -> int:
        """Merges all small files of an unpartitioned table into one. Deleted rows and renamed columns of other writers
        stay so: rows are read through the table's metadata, and columns are matched by id.
        """
        small, table = self._small(upkeep), self._table
        rows = nullable(stored_schema(table.schema().as_arrow(), small_integers=False))
        path = f"{table.location()}/data/compacted-{uuid4().hex}.parquet"
        writer = FileWriter(path, identified(rows, table.schema().as_arrow()))
        for task in small:
            part = IcebergPart(task.file.file_path, task.file.file_size_in_bytes, task, table.metadata, table.io)
            for batch in part.batches(rows):
                writer.write(batch)
        merged = writer.close()
        with (
            translate_catalog_errors(table.location()),
            table.transaction() as transaction,
            transaction.update_snapshot().overwrite() as change,
        ):
            for task in small:
                change.delete_data_file(task.file)
            if merged.rows:
                change.append_data_file(data_file(table, merged))
        return len(small)

    def expire(self, upkeep: MaintenancePolicy) -> int:
        before = datetime.now(UTC) - timedelta(seconds=upkeep.keep_s)
        with translate_catalog_errors(self._table.location()):
            self._table.maintenance.expire_snapshots().older_than(before).commit()
            self._table.refresh()
        return self._remove_unnamed(before)

    def _remove_unnamed(self, before: datetime) -> int:
        """Removes data files and manifests that no snapshot references and that are too old to belong to a pending
        commit.
        """
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
