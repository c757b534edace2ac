"""A batch becomes part of a lake table once, whoever brings it and however often."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from headrace.lake.delta import DeltaLakeTable, DeltaMaintenance
from headrace.lake.iceberg import IcebergLakeTable
from headrace.lake.iceberg_compaction import IcebergMaintenance
from headrace.lake.table import (
    NO_BATCH,
    Batch,
    CommitConflict,
    DataFile,
    LakeTable,
    MaintenancePolicy,
    SchemaMismatch,
    TableMaintenance,
    commit_once,
    evolve_schema_once,
)
from headrace.model.errors import InvalidConfig

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
Open = Callable[[], LakeTable]


@pytest.fixture(params=[DeltaLakeTable, IcebergLakeTable], ids=["delta", "iceberg"])
def open_table(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: request.param.open_or_create(str(tmp_path / "table"), SCHEMA)


def written(table: LakeTable, name: str, *ids: int) -> DataFile:
    path = Path(table.location.removeprefix("file://")) / "data" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(ids), "name": [str(one) for one in ids]}, schema=SCHEMA), path)
    return DataFile(str(path), path.stat().st_size, len(ids), {})


def ids_of(table: LakeTable) -> list[int]:
    table.refresh()
    files = [pq.read_table(path.removeprefix("file://")) for path in table.files()]
    return sorted(one for file in files for one in file.column("id").to_pylist())


def test_a_batch_that_comes_again_is_left_out(open_table: Open) -> None:
    table = open_table()
    assert table.last_batch("p") == NO_BATCH
    assert commit_once(table, [written(table, "a", 1, 2)], Batch("p", 0, {"orders-0": "0..2"}))
    again = open_table()
    assert not commit_once(again, [written(again, "b", 1, 2)], Batch("p", 0))
    assert commit_once(again, [written(again, "c", 3)], Batch("p", 1))
    assert ids_of(open_table()) == [1, 2, 3]
    assert open_table().last_batch("p") == 1


def test_owners_do_not_disturb_each_other(open_table: Open) -> None:
    table = open_table()
    assert commit_once(table, [written(table, "a", 1)], Batch("p", 5))
    assert commit_once(table, [written(table, "b", 2)], Batch("q", 0, {"from": "q"}))
    fresh = open_table()
    assert (fresh.last_batch("p"), fresh.last_batch("q"), fresh.notes("q")) == (5, 0, {"from": "q"})


def test_two_drivers_with_one_batch_add_it_once(open_table: Open) -> None:
    first, second = open_table(), open_table()
    ours, theirs = written(first, "a", 1), written(second, "b", 1)
    first.refresh()
    second.refresh()
    first.add([ours], Batch("p", 0))
    with pytest.raises(CommitConflict):
        second.add([theirs], Batch("p", 0))
    assert not commit_once(second, [theirs], Batch("p", 0))
    assert ids_of(open_table()) == [1]


def test_an_empty_batch_still_counts(open_table: Open) -> None:
    table = open_table()
    assert commit_once(table, [], Batch("p", 0))
    assert open_table().last_batch("p") == 0


def test_new_columns_find_room_and_other_types_are_refused(open_table: Open) -> None:
    table = open_table()
    table.fit(pa.schema([*SCHEMA, pa.field("more", pa.float64())]))
    open_table().fit(SCHEMA)
    with pytest.raises(SchemaMismatch, match="cast it in the pipeline's SQL"):
        open_table().fit(pa.schema([pa.field("id", pa.string())]))


def upkeep_of(table: LakeTable) -> TableMaintenance:
    if isinstance(table, DeltaLakeTable):
        return DeltaMaintenance(table.native)
    assert isinstance(table, IcebergLakeTable)
    return IcebergMaintenance(table.native)


def test_two_that_bring_the_same_new_column_both_find_it_there(open_table: Open) -> None:
    first, second = open_table(), open_table()
    wider = SCHEMA.append(pa.field("price", pa.float64()))
    evolve_schema_once(first, wider)
    evolve_schema_once(second, wider)
    assert commit_once(second, [written(second, "a", 1)], Batch("p", 0))
    assert ids_of(open_table()) == [1]
    evolve_schema_once(open_table(), wider)


def test_who_merges_files_that_somebody_else_has_merged_is_refused(open_table: Open) -> None:
    """Both would add what the files hold, and every row would be there twice."""
    small = MaintenancePolicy(small_files_max=1)
    table = open_table()
    for number in range(4):
        assert commit_once(table, [written(table, f"f{number}", number)], Batch("p", number))
    rivals = [upkeep_of(open_table()) for _ in range(2)]
    assert [one.small_files(small) for one in rivals] == [4, 4]
    assert rivals[0].compact(small) == 4
    with pytest.raises(CommitConflict):
        rivals[1].compact(small)
    assert ids_of(open_table()) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["orders.v1", "ü x", "100%", "it's", "a&b=c", "{a}", "*"])
@pytest.mark.parametrize("kind", [DeltaLakeTable, IcebergLakeTable], ids=["delta", "iceberg"])
def test_table_may_be_in_a_directory_of_any_name(kind: Any, name: str, tmp_path: Path) -> None:
    place = str(tmp_path / name)
    table = kind.open_or_create(place, SCHEMA)
    assert commit_once(table, [written(table, "a", 1)], Batch("p", 0, {"ends": "here"}))
    again = kind.open(place)
    assert (ids_of(again), again.last_batch("p"), again.notes("p")) == ([1], 0, {"ends": "here"})
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a%41b", "a?b", "a#b", "a\\b"])
@pytest.mark.parametrize("kind", [DeltaLakeTable, IcebergLakeTable], ids=["delta", "iceberg"])
def test_directory_that_a_uri_would_change_is_refused(kind: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="in its path"):
        kind.open_or_create(str(tmp_path / name), SCHEMA)
    assert list(tmp_path.iterdir()) == []
