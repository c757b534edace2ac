"""Iceberg through PyIceberg: the batch number is a table property, set in the transaction that adds the files.

PyIceberg repeats a commit by itself when somebody else was faster, and would add a batch twice that both had written;
so its retries are turned off, and ours look at the property first.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import DBAPIError

from headrace.spark.lake.iceberg_catalog import find_catalog, has_catalog, trouble_told
from headrace.spark.lake.table import NO_BATCH, Batch, DataFile, check_fits

_NO_RETRIES = {"commit.retry.num-retries": "0"}
# Who begins together with others may collide with them over one thing after the other: the two tables of the catalog,
# the namespace, the table. At the next attempt it is there.
_COLLISIONS_MAX = 4


def _batch_property(owner: str) -> str:
    return f"headrace.batch.{owner}"


def _notes_property(owner: str) -> str:
    return f"headrace.notes.{owner}"


class IcebergLakeTable:
    def __init__(self, table: Table) -> None:
        self._table = self.native = table
        self.location = table.location()

    @staticmethod
    def exists(target: str) -> bool:
        with trouble_told(target):
            if not has_catalog(target):
                return False
            catalog, name = find_catalog(target)
            return bool(catalog.table_exists(name))

    @classmethod
    def open(cls, target: str) -> "IcebergLakeTable":
        with trouble_told(target):
            if not has_catalog(target):
                raise NoSuchTableError(f"{target} has no table yet")
            catalog, name = find_catalog(target)
            return cls(catalog.load_table(name))

    @classmethod
    def open_or_create(cls, target: str, schema: pa.Schema, partition_by: Sequence[str] = ()) -> "IcebergLakeTable":
        """`target` is catalog.namespace.table of PyIceberg's own configuration, or a folder with a catalog in it."""
        with trouble_told(target):
            for _ in range(_COLLISIONS_MAX):
                with suppress(DBAPIError):
                    return cls(_found_or_made(target, schema, partition_by))
            return cls(_found_or_made(target, schema, partition_by))

    def refresh(self) -> None:
        with trouble_told(self.location):
            self._table.refresh()

    def last_batch(self, owner: str) -> int:
        return int(self._table.properties.get(_batch_property(owner), NO_BATCH))

    def notes(self, owner: str) -> Mapping[str, str]:
        notes: dict[str, str] = json.loads(self._table.properties.get(_notes_property(owner), "{}"))
        return notes

    def add(self, files: Sequence[DataFile], batch: Batch) -> None:
        remembered = {
            _batch_property(batch.owner): str(batch.number),
            _notes_property(batch.owner): json.dumps(dict(batch.notes)),
        }
        with trouble_told(self.location), self._table.transaction() as transaction:
            transaction.set_properties({**remembered, **_NO_RETRIES})
            if files:
                transaction.add_files([file.path for file in files], snapshot_properties=remembered)

    def fit(self, schema: pa.Schema) -> None:
        new = check_fits(self._table.schema().as_arrow(), schema, self.location)
        if new:
            with trouble_told(self.location), self._table.update_schema() as update:
                update.union_by_name(pa.schema([schema.field(name).with_nullable(True) for name in new]))

    def files(self) -> list[str]:
        return [task.file.file_path for task in self._table.scan().plan_files()]


def _found_or_made(target: str, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
    catalog, name = find_catalog(target)
    if not catalog.table_exists(name):
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(name.rpartition(".")[0])
        # Two begin at once: the other one's is as good.
        with suppress(TableAlreadyExistsError, CommitFailedException):
            _make(catalog, name, schema, partition_by)
    return catalog.load_table(name)


def _make(catalog: Catalog, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """With its partitions in one step: rows that others add in between would not be in any."""
    with (
        catalog.create_table_transaction(name, schema, properties=_NO_RETRIES) as transaction,
        transaction.update_spec() as update,
    ):
        for column in partition_by:
            update.add_field(column, IdentityTransform(), column)
