"""An Iceberg table in a folder, whose catalog is made by whoever comes first: alone, or with others at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from headrace.lake.iceberg import CatalogError, IcebergLakeTable
from headrace.lake.iceberg_compaction import IcebergMaintenance
from headrace.lake.table import Batch, CommitConflict, MaintenancePolicy, commit_once
from tests.unit.lake.test_table import SCHEMA, written

CROWD = 4
FOLDERS = 10  # in each of them somebody was refused before


def at_once(open_table: Callable[[], IcebergLakeTable]) -> list[IcebergLakeTable]:
    start = threading.Barrier(CROWD)

    def begin() -> IcebergLakeTable:
        start.wait()
        return open_table()

    with ThreadPoolExecutor(CROWD) as crowd:
        return [one.result() for one in [crowd.submit(begin) for _ in range(CROWD)]]


def test_all_that_begin_at_once_get_the_same_table(tmp_path: Path) -> None:
    for number in range(FOLDERS):
        target = str(tmp_path / f"table{number}")
        tables = at_once(lambda target=target: IcebergLakeTable.open_or_create(target, SCHEMA))
        assert len({one.native.metadata.table_uuid for one in tables}) == 1


def test_nobody_sees_the_table_before_it_is_partitioned(tmp_path: Path) -> None:
    for number in range(FOLDERS):
        target = str(tmp_path / f"table{number}")
        tables = at_once(lambda target=target: IcebergLakeTable.open_or_create(target, SCHEMA, ["name"]))
        assert [[field.name for field in one.native.spec().fields] for one in tables] == [["name"]] * CROWD


def test_who_asks_whether_there_is_a_table_makes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "table"
    assert not IcebergLakeTable.exists(str(target))
    assert not target.exists()
    target.mkdir()
    (target / "catalog.db").touch()  # as SQLite leaves it when its maker is not further than that
    assert not IcebergLakeTable.exists(str(target))
    assert (target / "catalog.db").stat().st_size == 0
    IcebergLakeTable.open_or_create(str(target), SCHEMA)
    assert IcebergLakeTable.exists(str(target))


def test_a_catalog_that_fails_is_trouble_that_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = IcebergLakeTable.open_or_create(str(tmp_path / "table"), SCHEMA)

    def locked(*_: object, **__: object) -> None:
        raise OperationalError("select", {}, Exception("database is locked"))

    monkeypatch.setattr(type(table.native.catalog), "load_table", locked)
    for action in (
        table.refresh,
        lambda: table.add([], Batch("p", 0)),
        lambda: IcebergMaintenance(table.native).expire(MaintenancePolicy()),
    ):
        with pytest.raises(CatalogError, match="database is locked"):
            action()


def test_who_expires_what_somebody_else_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two archivers of one topic care for its table: the later one does it another time."""
    target = str(tmp_path / "table")
    ours = IcebergLakeTable.open_or_create(target, SCHEMA)
    for number in range(2):  # the first of two snapshots can go
        assert commit_once(ours, [written(ours, f"f{number}", number)], Batch("p", number))
    theirs = IcebergLakeTable.open(target)
    catalog: Any = type(ours.native.catalog)
    write = catalog._write_metadata

    def meet(*given: object, **named: object) -> None:
        """The other one commits when we have seen the table and are about to."""
        monkeypatch.setattr(catalog, "_write_metadata", staticmethod(write))
        assert commit_once(theirs, [], Batch("p", 2))
        write(*given, **named)

    monkeypatch.setattr(catalog, "_write_metadata", staticmethod(meet))
    with pytest.raises(CommitConflict):
        IcebergMaintenance(ours.native).expire(MaintenancePolicy(keep_s=0))
