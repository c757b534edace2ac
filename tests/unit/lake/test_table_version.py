"""Tables of other writers are read as their logs say: partitions, younger columns, deleted rows, single versions."""

import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow import parquet as pq

from headrace.lake.iceberg import IcebergLakeTable
from headrace.lake.table_version import UnreadableTable, all_there, is_lake_table, open_version, packed
from headrace.spark.connector.table_source import BATCHES_KEPT, PINS, pinned
from tests.unit.lake.lake_tables import delete_in_delta, delete_in_iceberg
from tests.unit.lake.lake_values import PARTITIONS, SCHEMA, TIMES, plain, reference
from tests.unit.lake.test_values import KINDS, add, open_table

AT = pa.field("at", pa.timestamp("us", "UTC"))
OLD_PARTS = pa.list_(pa.field("element", pa.struct([AT])))
NEW_PARTS = pa.list_(pa.field("element", pa.struct([AT, pa.field("more", pa.int32())])))


def rows_of(place: Path, version: str | None = None) -> pa.Table:
    """As tasks read them: parts travel pickled."""
    found = open_version(str(place), version)
    parts = pickle.loads(pickle.dumps(packed(found.parts())))
    batches = [batch for task in parts for part in task for batch in part.batches(found.schema)]
    return pa.Table.from_batches(batches, found.schema)


def ids_of(place: Path) -> list[int]:
    return sorted(rows_of(place)["id"].to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition_by", [[], [*PARTITIONS]], ids=["whole", "partitioned"])
def test_every_type_and_value_is_read_as_it_was_written(kind: str, partition_by: list[str], tmp_path: Path) -> None:
    place = tmp_path / "tab le ü"
    add(open_table(kind, place, SCHEMA, partition_by), pa.Table.from_pylist(reference(), SCHEMA))
    assert is_lake_table(str(place))
    assert plain(rows_of(place)) == reference()


def test_a_delta_table_of_another_writer_is_read_as_its_log_says(tmp_path: Path) -> None:
    place = tmp_path / "t ü"
    first = pa.table({"id": [1, 2], "region": ["a/b=c %41", None], "at": [{"x": 1}, {"x": 2}]})
    write_deltalake(str(place), first, partition_by=["region"])
    later = pa.table({"id": [3], "region": ["e"], "at": [{"x": 3, "y": "new"}], "more": [3.5]})
    write_deltalake(str(place), later, mode="append", schema_mode="merge")
    write_deltalake(str(place), pa.table({"id": [4], "region": ["gone"]}), mode="append", schema_mode="merge")
    DeltaTable(str(place)).delete("region = 'gone'")
    engine = QueryBuilder().register("t", DeltaTable(str(place))).execute("select * from t order by id").read_all()
    assert rows_of(place).sort_by("id").to_pylist() == pa.table(engine).to_pylist()
    assert [row["region"] for row in rows_of(place).sort_by("id").to_pylist()] == ["a/b=c %41", None, "e"]


def test_rows_of_a_deletion_vector_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "t ü"
    write_deltalake(
        str(place), pa.table({"id": range(1000), "half": [n % 2 for n in range(1000)]}), partition_by=["half"]
    )
    odd = next(path for path in _log_paths(place) if "half=1" in path)
    there = pq.read_table(place / unquote(odd), partitioning=None)["id"].to_pylist()
    delete_in_delta(place, odd, [0, 7, 499])
    assert ids_of(place) == sorted({*range(1000)} - {there[0], there[7], there[499]})


def _log_paths(place: Path) -> list[str]:
    paths: list[str] = DeltaTable(str(place)).get_add_actions().column("path").to_pylist()
    return paths


def test_times_in_the_form_of_spark_and_in_structs_are_read(tmp_path: Path) -> None:
    """INT96 as Delta's own writer on Spark has it, and structs whose newer fields the file does not have."""
    place = tmp_path / "t"
    times = [TIMES[0], TIMES[-1], None]
    parts = [[{"at": TIMES[0]}], [], None]
    write_deltalake(
        str(place), pa.table({"at": pa.array([], pa.timestamp("us", "UTC")), "parts": pa.array([], NEW_PARTS)})
    )
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "parts": pa.array(parts, OLD_PARTS)})
    pq.write_table(rows, place / "int96.parquet", use_deprecated_int96_timestamps=True)
    size = (place / "int96.parquet").stat().st_size
    action = {"path": "int96.parquet", "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    (place / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": action}) + "\n")
    found = rows_of(place)
    assert found["at"].to_pylist() == times
    assert found["parts"].to_pylist() == [[{"at": TIMES[0], "more": None}], [], None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}}, "maps its columns"),
        ({"protocol": {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}}, "uses variantType"),
    ],
)
def test_delta_features_that_would_be_misread_are_refused(tmp_path: Path, change: Any, said: str) -> None:
    place = tmp_path / "t"
    write_deltalake(str(place), pa.table({"id": [1]}))
    first = place / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7} | change.get(
                "protocol", {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
            )
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], start=1):
                field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": "c1"}
            if "metaData" in change:
                action["metaData"] |= {"schemaString": json.dumps(schema)} | change["metaData"]
    first.write_text("\n".join(json.dumps(one) for one in actions) + "\n")
    with pytest.raises(UnreadableTable, match=said):
        open_version(str(place))


def iceberg(place: Path, **columns: list[Any]) -> IcebergLakeTable:
    rows = pa.table(columns)
    table = IcebergLakeTable.open_or_create(str(place), rows.schema)
    add(table, rows)
    return table


def test_rows_of_iceberg_delete_files_are_left_out(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", id=[*range(100)])
    delete_in_iceberg(table.native, f"{table.files()[0]}", [0, 50, 99])
    assert ids_of(tmp_path / "t") == sorted({*range(100)} - {0, 50, 99})


def test_iceberg_deletes_by_equality_are_refused(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", id=[1, 2])
    delete_in_iceberg(table.native, "", [1], by_equality=True)
    with pytest.raises(UnreadableTable, match="equality deletes"):
        ids_of(tmp_path / "t")


def test_renamed_and_younger_iceberg_columns_are_read(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", id=[1], name=["a"])
    with table.native.update_schema() as update:
        update.rename_column("name", "title")
    with table.native.update_schema() as update:
        update.union_by_name(pa.schema([pa.field("more", pa.float64())]))
    assert rows_of(tmp_path / "t").to_pylist() == [{"id": 1, "title": "a", "more": None}]


def test_an_iceberg_table_without_our_catalog_is_read(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", id=[1, 2])
    (tmp_path / "t" / "catalog.db").unlink()
    place = Path(table.location.removeprefix("file://"))
    assert is_lake_table(str(place))
    assert ids_of(place) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_table_has_columns_and_no_rows(kind: str, tmp_path: Path) -> None:
    open_table(kind, tmp_path / "t", pa.schema([pa.field("id", pa.int64())]), [])
    assert rows_of(tmp_path / "t").schema.names == ["id"]
    assert ids_of(tmp_path / "t") == []


# Versions of micro-batches


def two_versions(kind: str, place: Path) -> Iterator[None]:
    rows = pa.table({"id": [1]})
    for number in range(3):
        add(open_table(kind, place, rows.schema, []), rows, number)
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_reads_one_version_and_the_next_the_newest(kind: str, tmp_path: Path) -> None:
    place, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    change = two_versions(kind, place)
    next(change)
    first = pinned(str(place), checkpoint, 0, "run")
    next(change)
    again = pinned(str(place), checkpoint, 0, "run")
    assert (again.version, len(again.parts())) == (first.version, 1)
    repeated = pinned(str(place), checkpoint, 0, "a run after a crash")
    assert (repeated.version, len(repeated.parts())) == (first.version, 1)
    newer = pinned(str(place), checkpoint, 1, "run")
    assert len(newer.parts()) == 2


def test_tasks_that_look_at_once_find_one_version(tmp_path: Path) -> None:
    place, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    write_deltalake(str(place), pa.table({"id": [0]}))
    start = threading.Barrier(5)

    def change() -> None:
        start.wait()
        for number in range(5):
            write_deltalake(str(place), pa.table({"id": [number]}), mode="append")

    def look() -> list[str]:
        start.wait()
        return [pinned(str(place), checkpoint, batch, "run").version for batch in range(20)]

    with ThreadPoolExecutor(5) as threads:
        changing = threads.submit(change)
        seen = [one.result() for one in [threads.submit(look) for _ in range(4)]]
        changing.result()
    assert seen == [seen[0]] * 4
    assert [*map(int, seen[0])] == sorted(map(int, seen[0])), "versions never go back"


def test_a_version_that_was_vacuumed_is_given_up_by_later_runs(tmp_path: Path) -> None:
    place, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    write_deltalake(str(place), pa.table({"id": [1]}))
    parts = pinned(str(place), checkpoint, 0, "run").parts()
    write_deltalake(str(place), pa.table({"id": [2]}), mode="overwrite")
    DeltaTable(str(place)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert not all_there(parts)
    assert pinned(str(place), checkpoint, 0, "run").version == "0", "a part of the batch may have been read"
    version = pinned(str(place), checkpoint, 0, "next run")
    assert version.version != "0"
    assert all_there(version.parts())


def test_pins_of_old_batches_are_removed(tmp_path: Path) -> None:
    place, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    write_deltalake(str(place), pa.table({"id": [1]}))
    for batch in (0, 1, BATCHES_KEPT + 1):
        pinned(str(place), checkpoint, batch, "run")
    [directory] = (checkpoint / PINS).iterdir()
    assert sorted(one.name for one in directory.iterdir()) == ["1.0", f"{BATCHES_KEPT + 1}.0"]
