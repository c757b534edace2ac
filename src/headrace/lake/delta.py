"""Delta Lake tables through delta-rs, and their maintenance.

The batch number is an application transaction in Delta's own log. Compaction is one commit that is marked as changing
no data.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction

from headrace.lake.parquet import check_directory
from headrace.lake.partition_values import delta_text
from headrace.lake.row_types import as_in_table, nullable, stored_schema
from headrace.lake.table import (
    NO_BATCH,
    Batch,
    CommitConflict,
    DataFile,
    Layout,
    MaintenancePolicy,
    SchemaMismatch,
    check_fits,
)

# Number of history entries searched first for the notes of an owner's last batch; it is nearly always the newest.
FIRST_LOOK = 3
HISTORY_MAX: int | None = None  # in the second attempt: everything that the log still has

# Writer features that this writer satisfies if the table uses none of the settings below.
WRITE_FEATURES = frozenset(
    [
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    ]
)
_MAPPING = "delta.columnMapping.mode"
_SWITCHES = ("delta.enableInCommitTimestamps", "delta.enableRowTracking")
_CONSTRAINTS = "delta.constraints."
_COLUMN_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


@contextmanager
def translate_errors(location: str) -> Iterator[None]:
    """Translates a commit that lost against a concurrent one to CommitConflict."""
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(f"{location}: {error}") from error


class DeltaLakeTable:
    def __init__(self, table: DeltaTable) -> None:
        self._table = self.native = table
        self.location = place_of(table.table_uri)

    @staticmethod
    def exists(target: str) -> bool:
        check_directory(target)
        return DeltaTable.is_deltatable(target)

    @classmethod
    def open(cls, target: str) -> "DeltaLakeTable":
        return cls(DeltaTable(target))

    @classmethod
    def open_or_create(
        cls,
        target: str,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        storage: Mapping[str, str] | None = None,
    ) -> "DeltaLakeTable":
        check_directory(target)
        options = dict(storage or {})
        if not DeltaTable.is_deltatable(target, options):
            DeltaTable.create(
                target,
                _stored(schema),
                mode="ignore",
                partition_by=list(partition_by) or None,
                storage_options=options,
            )
        return cls(DeltaTable(target, storage_options=options))

    def refresh(self) -> None:
        self._table.update_incremental()

    def last_batch(self, owner: str) -> int:
        version = self._table.transaction_version(owner)
        return NO_BATCH if version is None else int(version)

    def notes(self, owner: str) -> Mapping[str, str]:
        # Searched by number: delta-rs reads the history from the directory, including commits after the last refresh.
        number = str(self.last_batch(owner))
        for limit in (FIRST_LOOK, HISTORY_MAX):
            for entry in self._table.history(limit):
                if entry.get("headrace.owner") == owner and entry.get("headrace.batch") == number:
                    notes: dict[str, str] = json.loads(entry["headrace.notes"])
                    return notes
        return {}

    def add(self, files: Sequence[DataFile], batch: Batch) -> None:
        properties = CommitProperties(
            custom_metadata={
                "headrace.owner": batch.owner,
                "headrace.batch": str(batch.number),
                "headrace.notes": json.dumps(dict(batch.notes)),
            },
            max_commit_retries=0,
            app_transactions=[Transaction(batch.owner, batch.number)],
        )
        self._check_writable()
        with translate_errors(self.location):
            self._table.create_write_transaction(
                [self._action(file) for file in files],
                mode="append",
                schema=self._table.schema(),
                partition_by=self._table.metadata().partition_columns,
                commit_properties=properties,
            )

    def _action(self, file: DataFile) -> AddAction:
        relative = quote(str(PurePosixPath(file.path).relative_to(self.location)))
        types = self._schema()
        values = {name: delta_text(name, value, types.field(name).type) for name, value in file.partition.items()}
        return AddAction(relative, file.size, values, 0, True, json.dumps({"numRecords": file.rows}))

    def _schema(self) -> pa.Schema:
        return stored_schema(pa.schema(self._table.schema().to_arrow()), small_integers=True)

    @property
    def partition_by(self) -> list[str]:
        return list(self._table.metadata().partition_columns)

    def layout(self, schema: pa.Schema) -> Layout:
        rows = as_in_table(self._schema(), _stored(schema))
        files = pa.schema([one for one in rows if one.name not in self.partition_by])
        return Layout(rows, self.partition_by, files)

    def _check_writable(self) -> None:
        """Raises SchemaMismatch if the table requires something that delta-rs' plain commit of files does not do."""
        metadata, protocol = self._table.metadata(), self._table.protocol()
        configuration = metadata.configuration
        if configuration.get(_MAPPING, "none") != "none":
            raise self._unwritable("maps its columns", f"{_MAPPING} = {configuration[_MAPPING]}")
        for name in configuration:
            if name.startswith(_CONSTRAINTS) or (name in _SWITCHES and configuration[name] == "true"):
                raise self._unwritable("sets a table property", f"{name} = {configuration[name]}")
        for field in self._table.schema().fields:
            for rule in _COLUMN_RULES:
                if rule in field.metadata:
                    raise self._unwritable(f"has a rule for the values of {field.name}", rule)
        unknown = set(protocol.writer_features or []) - WRITE_FEATURES
        if unknown:
            raise self._unwritable("uses features of Delta Lake", ", ".join(sorted(unknown)))

    def _unwritable(self, what: str, which: str) -> SchemaMismatch:
        return SchemaMismatch(
            f"{self.location} {what} ({which}), which headrace cannot write to; remove it, or write to another table"
        )

    def new_columns(self, schema: pa.Schema) -> list[str]:
        self._check_writable()
        return check_fits(self._schema(), _stored(schema), self.location)

    def fit(self, schema: pa.Schema) -> None:
        new = self.new_columns(schema)
        if new:
            rows = _stored(schema)
            fields = DeltaSchema.from_arrow(pa.schema([rows.field(name) for name in new])).fields
            with translate_errors(self.location):
                self._table.alter.add_columns(fields)

    def files(self) -> list[str]:
        return [path_of(self.location, path) for path in self._table.get_add_actions().column("path").to_pylist()]


def path_of(location: str, path: str) -> str:
    """Returns the location of a data file from its path in the log. delta-rs' `file_uris` escape a part of it twice."""
    return path if "://" in path else f"{location}/{unquote(path)}"


def place_of(uri: str) -> str:
    """Returns the path of a local table without URI escapes."""
    return unquote(uri.removeprefix("file://")).rstrip("/") if uri.startswith(("/", "file://")) else uri.rstrip("/")


def _stored(schema: pa.Schema) -> pa.Schema:
    return nullable(stored_schema(schema, small_integers=True))


class DeltaMaintenance:
    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def small_files(self, upkeep: MaintenancePolicy) -> int:
        self._table.update_incremental()
        sizes = self._table.get_add_actions(flatten=True)["size_bytes"].to_pylist()
        small = sum(size < upkeep.small_bytes for size in sizes)
        return small if small > upkeep.small_files_max else 0

    def compact(self, upkeep: MaintenancePolicy) -> int:
        with translate_errors(self._table.table_uri):
            done = self._table.optimize.compact(
                target_size=upkeep.small_bytes * 2,
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        return int(done["numFilesRemoved"])

    def expire(self, upkeep: MaintenancePolicy) -> int:
        """Removes unreferenced files, including those of writers that died: no commit takes longer than `keep_s`."""
        removed = self._table.vacuum(
            retention_hours=int(upkeep.keep_s // 3600),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        return len(removed)
