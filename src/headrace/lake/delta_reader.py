"""A version of a Delta table: files, partition values and deleted rows, as delta-rs reads the log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet as pq

from headrace.lake.delta import path_of, place_of
from headrace.lake.parquet import open_folder
from headrace.lake.row_types import constant, fitted_to, nullable, stored_schema
from headrace.lake.table_version import UnreadableTable

# Reader features that this reader supports; with others, files could be misread. After type widening older files have
# narrower types, which every read casts.
READ_FEATURES = frozenset(
    ["deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"]
)
_MAPPING = "delta.columnMapping.mode"


class DeltaVersion:
    def __init__(self, place: str, version: str | None = None) -> None:
        self._table = DeltaTable(place, version=None if version is None else int(version))
        self.version = str(self._table.version())
        _check_readable(place, self._table)
        self.schema = nullable(stored_schema(pa.schema(self._table.schema().to_arrow()), small_integers=True))

    def parts(self) -> Sequence["DeltaPart"]:
        location = place_of(self._table.table_uri)
        deleted = self._deleted()
        actions: list[dict[str, Any]] = pa.table(self._table.get_add_actions()).to_pylist()
        parts = []
        for action in actions:
            path = path_of(location, action["path"])
            parts.append(DeltaPart(path, action["size_bytes"], action.get("partition") or {}, deleted.pop(path, b"")))
        if deleted:
            raise UnreadableTable(f"{location}: there is no file for the deletion vector of {next(iter(deleted))}")
        return parts

    def _deleted(self) -> dict[str, bytes]:
        """Returns the deletion vector of each file that has one: one bit per row, set if the row is kept."""
        if "deletionVectors" not in (self._table.protocol().reader_features or []):
            return {}
        found = {}
        for batch in self._table.deletion_vectors():
            rows = pa.record_batch(batch)
            for path, kept in zip(rows["filepath"].to_pylist(), rows["selection_vector"], strict=True):
                bits = np.packbits(kept.values.to_numpy(zero_copy_only=False))
                found[unquote(path.removeprefix("file://"))] = bits.tobytes()
        return found


def _check_readable(place: str, table: DeltaTable) -> None:
    mode = table.metadata().configuration.get(_MAPPING, "none")
    if mode != "none":
        raise UnreadableTable(
            f"{place} maps its columns ({_MAPPING} = {mode}), which headrace cannot read; copy it to a table without it"
        )
    unknown = set(table.protocol().reader_features or []) - READ_FEATURES - {"columnMapping"}
    if unknown:
        raise UnreadableTable(f"{place} uses {', '.join(sorted(unknown))} of Delta Lake, which headrace cannot read")


@dataclass(frozen=True, slots=True)
class DeltaPart:
    path: str
    size: int
    partition: dict[str, Any] = field(default_factory=dict)
    kept: bytes = b""

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        filesystem, place = open_folder(self.path)
        # Spark writes INT96 by default, which as nanoseconds ends in the year 2262.
        file = pq.ParquetFile(place, filesystem=filesystem, coerce_int96_timestamp_unit="us")
        names = [name for name in schema.names if name in file.schema_arrow.names and name not in self.partition]
        start = 0
        for batch in file.iter_batches(columns=names):
            columns = [self._column(batch, one) for one in schema]
            rows = pa.RecordBatch.from_arrays(columns, schema=schema)
            yield self._without_deleted(rows, start)
            start += batch.num_rows

    def _column(self, batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        if wanted.name in self.partition:
            return constant(self.partition[wanted.name], wanted.type, batch.num_rows)
        if wanted.name in batch.schema.names:
            return fitted_to(batch.column(wanted.name), wanted.type)
        return pa.nulls(batch.num_rows, wanted.type)  # the column was added after the file was written

    def _without_deleted(self, rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
        if not self.kept:
            return rows
        bits = np.unpackbits(np.frombuffer(self.kept, np.uint8))[start : start + rows.num_rows].astype(bool)
        # Rows after the end of the vector are kept.
        kept = np.concatenate([bits, np.ones(rows.num_rows - len(bits), bool)])
        return rows.filter(pa.array(kept))
