"""Iceberg through PyIceberg: the batch number is a table property, set in the transaction that adds the files.

PyIceberg repeats a commit by itself when somebody else was faster, and would add a batch twice that both had written;
so its retries are turned off, and ours look at the property first.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from headrace.model.errors import InvalidConfig
from headrace.spark.lake.table import NO_BATCH, Batch, DataFile, TableChanged, check_fits

NAMESPACE = "headrace"
_NO_RETRIES = {"commit.retry.num-retries": "0"}


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
        catalog, name = _find_catalog(target)
        return bool(catalog.table_exists(name))

    @classmethod
    def open(cls, target: str) -> "IcebergLakeTable":
        catalog, name = _find_catalog(target)
        return cls(catalog.load_table(name))

    @classmethod
    def open_or_create(cls, target: str, schema: pa.Schema, partition_by: Sequence[str] = ()) -> "IcebergLakeTable":
        """`target` is catalog.namespace.table of PyIceberg's own configuration, or a folder with a catalog in it."""
        catalog, name = _find_catalog(target)
        if not catalog.table_exists(name):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(name.rpartition(".")[0])
            with suppress(TableAlreadyExistsError):  # two begin at once: the other one's is as good
                table = catalog.create_table(name, schema, properties=_NO_RETRIES)
                with table.update_spec() as update:
                    for column in partition_by:
                        update.add_field(column, IdentityTransform(), column)
        return cls(catalog.load_table(name))

    def refresh(self) -> None:
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
        try:
            with self._table.transaction() as transaction:
                transaction.set_properties({**remembered, **_NO_RETRIES})
                if files:
                    transaction.add_files([file.path for file in files], snapshot_properties=remembered)
        except CommitFailedException as error:
            raise TableChanged(f"{self.location}: {error}") from error

    def fit(self, schema: pa.Schema) -> None:
        new = check_fits(self._table.schema().as_arrow(), schema, self.location)
        if new:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([schema.field(name).with_nullable(True) for name in new]))

    def files(self) -> list[str]:
        return [task.file.file_path for task in self._table.scan().plan_files()]


def _find_catalog(target: str) -> tuple[Catalog, str]:
    if "/" not in target and target.count(".") >= 2:
        configured, _, name = target.partition(".")
        return load_catalog(configured), name
    folder = Path(target.removeprefix("file://")).absolute()
    if folder.exists() and not folder.is_dir():
        raise InvalidConfig(f"{folder} is a file; an Iceberg table needs a folder")
    folder.mkdir(parents=True, exist_ok=True)
    catalog_uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog(NAMESPACE, type="sql", uri=catalog_uri, warehouse=f"file://{folder}")
    return catalog, f"{NAMESPACE}.{folder.name}"
