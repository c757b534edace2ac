"""Iceberg tables through PyIceberg, and their catalog.

The catalog is one of PyIceberg's own configuration, or a SQLite file in the table's directory, created by the first
writer. Its errors and commit conflicts are translated to headrace's exceptions.

The batch number is a table property, set in the transaction that adds the files. PyIceberg would repeat a commit that
lost against a concurrent one, and so add a batch twice that both have written. Its retries are therefore disabled;
`commit_once` checks the property before each attempt.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.lake.parquet import check_directory, open_folder
from headrace.lake.row_types import as_in_table, identified, nullable, stored_schema
from headrace.lake.table import NO_BATCH, Batch, CommitConflict, DataFile, Layout, SchemaMismatch, check_fits
from headrace.model.errors import HeadraceError, InvalidConfig

NAMESPACE = "headrace"
FILE = "catalog.db"


class CatalogError(HeadraceError):
    """The catalog failed; its database may be locked, or another process is creating it."""

    retriable = True


@contextmanager
def translate_catalog_errors(location: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise CommitConflict(f"{location}: {error}") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        # SQLAlchemy appends the statement in further lines. The database's message is sufficient for a log.
        raise CatalogError(f"the catalog of {location}: {getattr(error, 'orig', None) or error}") from error


def find_catalog(target: str) -> tuple[Catalog, tuple[str, ...]]:
    """Returns the catalog and the table's name with its namespaces. Creates a catalog in a directory if needed."""
    folder = _folder_of(target)
    if folder is None:
        configured, *name = target.split(".")
        return load_catalog(configured), tuple(name)
    check_directory(str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    catalog = load_catalog(NAMESPACE, type="sql", uri=f"sqlite:///{folder}/{FILE}", warehouse=f"file://{folder}")
    return catalog, (NAMESPACE, folder.name)


def has_catalog(target: str) -> bool:
    """Whether the catalog exists. Creates nothing, unlike PyIceberg, which creates missing tables and so would
    disturb a concurrent creation.
    """
    folder = _folder_of(target)
    if folder is None:
        return True
    file = folder / FILE
    if not file.exists():
        return False
    # Read-write, because SQLite otherwise cannot recover after a writer that died. Creates no file.
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True)) as database:
        there = {name for (name,) in database.execute("select name from sqlite_master")}
    return there >= set(SqlCatalogBaseTable.metadata.tables)


def _folder_of(target: str) -> Path | None:
    """Returns the directory of a catalog; None if the target is catalog.namespace.table."""
    if "/" not in target and target.count(".") >= 2:
        return None
    folder = Path(target.removeprefix("file://")).absolute()
    if folder.exists() and not folder.is_dir():
        raise InvalidConfig(f"{folder} is a file; an Iceberg table needs a directory")
    return folder


_NO_RETRIES = {"commit.retry.num-retries": "0"}
# Concurrent creators may collide at each step: the two tables of the catalog, the namespace, the table. The next
# attempt finds what the other one has created.
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
        with translate_catalog_errors(target):
            if not has_catalog(target):
                return False
            catalog, name = find_catalog(target)
            return bool(catalog.table_exists(name))

    @classmethod
    def open(cls, target: str) -> "IcebergLakeTable":
        with translate_catalog_errors(target):
            if not has_catalog(target):
                raise NoSuchTableError(f"{target} has no table yet")
            catalog, name = find_catalog(target)
            return cls(catalog.load_table(name))

    @classmethod
    def open_or_create(cls, target: str, schema: pa.Schema, partition_by: Sequence[str] = ()) -> "IcebergLakeTable":
        """Opens or creates a table. `target` is catalog.namespace.table of PyIceberg's configuration, or a directory
        with a catalog in it.
        """
        with translate_catalog_errors(target):
            for _ in range(_COLLISIONS_MAX):
                with suppress(DBAPIError):
                    return cls(_found_or_made(target, schema, partition_by))
            return cls(_found_or_made(target, schema, partition_by))

    def refresh(self) -> None:
        with translate_catalog_errors(self.location):
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
        with translate_catalog_errors(self.location), self._table.transaction() as transaction:
            transaction.set_properties({**remembered, **_NO_RETRIES})
            if files:
                _map_names(transaction)
                with transaction.update_snapshot(snapshot_properties=remembered).fast_append() as append:
                    for file in files:
                        append.append_data_file(data_file(self._table, file))

    def _schema(self) -> pa.Schema:
        return stored_schema(self._table.schema().as_arrow(), small_integers=False)

    @property
    def partition_by(self) -> list[str]:
        spec = self._table.spec()
        other = [field for field in spec.fields if not isinstance(field.transform, IdentityTransform)]
        if other:
            raise SchemaMismatch(
                f"{self.location} is partitioned by {other[0].transform} of a column ({other[0].name}), and headrace "
                "writes partitions of whole values; write to another table"
            )
        return [self._table.schema().find_column_name(field.source_id) or field.name for field in spec.fields]

    def layout(self, schema: pa.Schema) -> Layout:
        rows = as_in_table(self._schema(), _stored(schema))
        # By field id: after a rename, or with a new column of the same name, matching by name would assign the values
        # to another column.
        return Layout(rows, self.partition_by, identified(rows, self._table.schema().as_arrow()))

    def new_columns(self, schema: pa.Schema) -> list[str]:
        return check_fits(self._schema(), _stored(schema), self.location)

    def fit(self, schema: pa.Schema) -> None:
        new = self.new_columns(schema)
        if new:
            rows = _stored(schema)
            with translate_catalog_errors(self.location), self._table.update_schema() as update:
                update.union_by_name(pa.schema([rows.field(name) for name in new]))

    def files(self) -> list[str]:
        return [task.file.file_path for task in self._table.scan().plan_files()]


def _stored(schema: pa.Schema) -> pa.Schema:
    return nullable(stored_schema(schema, small_integers=False))


def _map_names(transaction: Transaction) -> None:
    """Sets the name mapping, which assigns field ids to files of earlier versions that have column names only."""
    metadata = transaction.table_metadata
    if metadata.name_mapping() is None:
        mapping = metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})


def data_file(table: Table, file: DataFile) -> IcebergFile:
    """Returns the manifest entry of a file. PyIceberg would derive the partition from statistics, which long
    values do not have.
    """
    filesystem, place = open_folder(file.path)
    metadata, schema = table.metadata, table.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(place, filesystem=filesystem),
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    columns = [schema.find_column_name(field.source_id) or field.name for field in table.spec().fields]
    return IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(file.partition[name] for name in columns)),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _found_or_made(target: str, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
    catalog, name = find_catalog(target)
    if not catalog.table_exists(name):
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(name[:-1])
        # A concurrent creator's table is equivalent.
        with suppress(TableAlreadyExistsError, CommitFailedException):
            _make(catalog, name, schema, partition_by)
    return catalog.load_table(name)


def _make(catalog: Catalog, name: tuple[str, ...], schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Creates table and partitioning in one transaction, so that no concurrent append comes in between without a
    partition.
    """
    with (
        catalog.create_table_transaction(name, _stored(schema), properties=_NO_RETRIES) as transaction,
        transaction.update_spec() as update,
    ):
        for column in partition_by:
            update.add_field(column, IdentityTransform(), column)
