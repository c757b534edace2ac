"""Delta Lake through delta-rs: the batch number is an application transaction of Delta's own log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction

from headrace.spark.lake.table import NO_BATCH, Batch, DataFile, TableChanged, check_fits

# History entries that are looked through for the notes of an owner's last batch; the newest is nearly always it.
HISTORY_MAX = 100
FIRST_LOOK = 3


@contextmanager
def changes_told(location: str) -> Iterator[None]:
    """A commit that the table's log refuses, because of somebody else's, is told in our own words."""
    try:
        yield
    except CommitFailedError as error:
        raise TableChanged(f"{location}: {error}") from error


class DeltaLakeTable:
    def __init__(self, table: DeltaTable) -> None:
        self._table = self.native = table
        self.location = table.table_uri

    @staticmethod
    def exists(target: str) -> bool:
        return DeltaTable.is_deltatable(target)

    @classmethod
    def open_or_create(
        cls,
        target: str,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        storage: Mapping[str, str] | None = None,
    ) -> "DeltaLakeTable":
        options = dict(storage or {})
        if not DeltaTable.is_deltatable(target, options):
            DeltaTable.create(
                target, schema, mode="ignore", partition_by=list(partition_by) or None, storage_options=options
            )
        return cls(DeltaTable(target, storage_options=options))

    def refresh(self) -> None:
        self._table.update_incremental()

    def last_batch(self, owner: str) -> int:
        version = self._table.transaction_version(owner)
        return NO_BATCH if version is None else int(version)

    def notes(self, owner: str) -> Mapping[str, str]:
        # By its number: delta-rs reads the history from the folder, with commits that came after the last refresh.
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
        with changes_told(self.location):
            self._table.create_write_transaction(
                [self._action(file) for file in files],
                mode="append",
                schema=self._table.schema(),
                partition_by=self._table.metadata().partition_columns,
                commit_properties=properties,
            )

    def _action(self, file: DataFile) -> AddAction:
        root = self._table.table_uri.removeprefix("file://").rstrip("/")
        relative = str(PurePosixPath(file.path.removeprefix("file://")).relative_to(root))
        return AddAction(relative, file.size, file.partition, 0, True, json.dumps({"numRecords": file.rows}))

    def fit(self, schema: pa.Schema) -> None:
        new = check_fits(pa.schema(self._table.schema().to_arrow()), schema, self.location)
        if new:
            fields = DeltaSchema.from_arrow(pa.schema([schema.field(name).with_nullable(True) for name in new])).fields
            with changes_told(self.location):
                self._table.alter.add_columns(fields)

    def files(self) -> list[str]:
        return [str(uri) for uri in self._table.file_uris()]
