"""The catalog that knows an Iceberg table: one of PyIceberg's own configuration, or one in the table's folder.

The latter is a SQLite file, made by the first who writes. Its errors, and commits that came too late, become ours here.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import SQLAlchemyError

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.lake.files import check_directory
from headrace.spark.lake.table import TableChanged

NAMESPACE = "headrace"
FILE = "catalog.db"


class CatalogTrouble(HeadraceError):
    """The catalog does not answer as it should; its database may be locked, or just be made by somebody else."""

    retriable = True


@contextmanager
def trouble_told(location: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise TableChanged(f"{location}: {error}") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        # SQLAlchemy adds the statement, in lines of its own; what the database said is enough for a log.
        raise CatalogTrouble(f"the catalog of {location}: {getattr(error, 'orig', None) or error}") from error


def find_catalog(target: str) -> tuple[Catalog, tuple[str, ...]]:
    """And the table's name in it, with its namespaces. One in a folder is made if need be."""
    folder = _folder_of(target)
    if folder is None:
        configured, *name = target.split(".")
        return load_catalog(configured), tuple(name)
    check_directory(str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    catalog = load_catalog(NAMESPACE, type="sql", uri=f"sqlite:///{folder}/{FILE}", warehouse=f"file://{folder}")
    return catalog, (NAMESPACE, folder.name)


def has_catalog(target: str) -> bool:
    """Makes nothing, unlike PyIceberg, which makes what is not there: a look would be in the way of a maker's work."""
    folder = _folder_of(target)
    if folder is None:
        return True
    file = folder / FILE
    if not file.exists():
        return False
    # For writing too, or SQLite could not put right what a writer that died has left; but it makes no new file.
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True)) as database:
        there = {name for (name,) in database.execute("select name from sqlite_master")}
    return there >= set(SqlCatalogBaseTable.metadata.tables)


def _folder_of(target: str) -> Path | None:
    """None: the target is catalog.namespace.table."""
    if "/" not in target and target.count(".") >= 2:
        return None
    folder = Path(target.removeprefix("file://")).absolute()
    if folder.exists() and not folder.is_dir():
        raise InvalidConfig(f"{folder} is a file; an Iceberg table needs a directory")
    return folder
