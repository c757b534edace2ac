"""Writes Parquet files of a lake table from Arrow, without Spark. A file belongs to the table once a commit references
it.
"""

import os
import re
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from headrace.lake.table import DataFile
from headrace.model.errors import InvalidConfig

FILE_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_statistics": True}
# Size at which a row group is written: readers read or skip whole groups, and writers hold one in memory.
GROUP_ROWS = 100_000
GROUP_BYTES = 64 * 1024 * 1024


def open_folder(place: str) -> tuple[fs.FileSystem, str]:
    """Returns file system and path. A local path is not parsed as a URI, in which a blank is an error and `%41` another
    character.
    """
    path = place.removeprefix("file://")
    if "://" not in path:
        return fs.LocalFileSystem(), path
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(place)
    return found


# These have another meaning in URIs, which the table libraries use for files: the table would be created in another
# directory, or its history would not be found.
_OF_URIS = re.compile(r"[?#\\]|%[0-9A-Fa-f]{2}")


def check_directory(place: str) -> None:
    """Raises InvalidConfig if this local directory cannot contain a table."""
    path = place.removeprefix("file://")
    found = _OF_URIS.search(path) if "://" not in path else None
    if found is not None:
        raise InvalidConfig(f"{path}: a table cannot be in a directory with {found[0]!r} in its path")


class FileWriter:
    """Writes one file, collecting batches into row groups."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        self.rows = self.bytes = 0
        self._filesystem, self._place = open_folder(path)
        self._filesystem.create_dir(self._place.rpartition("/")[0])
        self._schema = schema
        self._writer = pq.ParquetWriter(self._place, schema, filesystem=self._filesystem, **FILE_OPTIONS)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        batch = batch.cast(self._schema)  # same types; adds the field ids of a table's columns
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._held, self._held_rows, self._held_bytes = [], 0, 0

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        self._sync()
        size = self._filesystem.get_file_info(self._place).size
        return DataFile(self.path, int(size), self.rows, {})

    def _sync(self) -> None:
        """Syncs the file. After the commit retention may delete the records from the topic, so the file must survive a
        power loss.
        """
        if isinstance(self._filesystem, fs.LocalFileSystem):
            descriptor = os.open(self._place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
