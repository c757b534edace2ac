"""What rows of every type become in Delta and Iceberg files, read back by the formats' own libraries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet as pq

from headrace.lake.delta import DeltaLakeTable
from headrace.lake.iceberg import IcebergLakeTable
from headrace.lake.table import (
    Batch,
    LakeTable,
    SchemaMismatch,
    UnfitValue,
    check_partitioning,
    commit_once,
    evolve_schema_once,
)
from headrace.spark.pipeline.lake_writer import written
from tests.unit.lake.lake_values import PARTITIONS, SCHEMA, plain, reference

KINDS: dict[str, Any] = {"delta": DeltaLakeTable, "iceberg": IcebergLakeTable}
BATCH_ROWS = 3
PYICEBERG_ERRS_IN = "places"  # it reads a null list of structs as an empty one, so PyArrow reads that column


def open_table(kind: str, path: Path, schema: pa.Schema, partition_by: list[str]) -> LakeTable:
    table: LakeTable = KINDS[kind].open_or_create(str(path), schema, partition_by)
    return table


def add(table: LakeTable, rows: pa.Table, number: int = 0) -> None:
    """As the sink's tasks and its driver do, sorted as Spark sorts them."""
    evolve_schema_once(table, rows.schema)
    layout = table.layout(rows.schema)
    if layout.partition_by:
        rows = rows.sort_by([(name, "ascending") for name in layout.partition_by])
    batches: Iterator[pa.RecordBatch] = iter(rows.to_batches(max_chunksize=BATCH_ROWS))
    directory = f"{table.location.removeprefix('file://')}/data"
    commit_once(table, list(written(batches, directory, layout)), Batch("p", number))


def read(kind: str, path: Path) -> pa.Table:
    if kind == "delta":
        # By delta-rs' own engine: its bridge to PyArrow spells negative decimals of partitions wrong.
        found = QueryBuilder().register("t", DeltaTable(str(path))).execute("select * from t").read_all()
        return pa.table(found)
    table = IcebergLakeTable.open(str(path))
    rows = table.native.scan().to_arrow().sort_by("id")
    if PYICEBERG_ERRS_IN not in rows.column_names:
        return rows
    files = [pq.read_table(file.removeprefix("file://"), columns=["id", PYICEBERG_ERRS_IN]) for file in table.files()]
    right = pa.concat_tables(files).sort_by("id")[PYICEBERG_ERRS_IN]
    return rows.set_column(rows.column_names.index(PYICEBERG_ERRS_IN), PYICEBERG_ERRS_IN, right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partition_by", [[], [*PARTITIONS], *([name] for name in PARTITIONS)], ids=" ".join)
def test_every_type_and_value_is_read_back(kind: str, partition_by: list[str], tmp_path: Path) -> None:
    path = tmp_path / "tab le ü"
    rows = reference()
    half = len(rows) // 2
    for number, part in enumerate((rows[:half], rows[half:])):
        table = open_table(kind, path, SCHEMA, partition_by)
        add(table, pa.Table.from_pylist(part, SCHEMA), number)
    assert plain(read(kind, path)) == rows
    files = open_table(kind, path, SCHEMA, partition_by).files()
    for name in ("ts", "ntz"):
        schemas = [pq.read_schema(file.removeprefix("file://")) for file in files]
        assert {str(one.field(name).type) for one in schemas} == {str(SCHEMA.field(name).type)}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_found_by_partition_and_by_statistics(kind: str, tmp_path: Path) -> None:
    rows = reference()
    add(open_table(kind, tmp_path / "t", SCHEMA, ["p_str"]), pa.Table.from_pylist(rows, SCHEMA))
    for row in rows[:-1]:
        found = _where(kind, tmp_path / "t", "p_str", row["p_str"])
        assert found == [row["id"]]
    for column in ("str", "i64", "date"):
        wanted = [row["id"] for row in rows if row[column] == rows[1][column]]
        assert _where(kind, tmp_path / "t", column, rows[1][column]) == wanted


def _where(kind: str, path: Path, column: str, value: Any) -> list[int]:
    if kind == "delta":
        found = DeltaTable(str(path)).to_pyarrow_table(filters=[(column, "=", value)])
    else:
        from pyiceberg.expressions import EqualTo

        found = IcebergLakeTable.open(str(path)).native.scan(EqualTo(column, value=value)).to_arrow()
    return sorted(found["id"].to_pylist())


TEXTS = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])


def test_an_empty_string_is_an_iceberg_partition(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "text": ["", None, "x"]}, schema=TEXTS)
    add(open_table("iceberg", tmp_path / "t", TEXTS, ["text"]), rows)
    assert sorted(read("iceberg", tmp_path / "t").to_pylist(), key=lambda row: row["id"]) == rows.to_pylist()


def test_an_empty_string_as_delta_partition_is_refused(tmp_path: Path) -> None:
    table = open_table("delta", tmp_path / "t", TEXTS, ["text"])
    with pytest.raises(UnfitValue, match="an empty string cannot be the value of the partition column text"):
        add(table, pa.table({"id": [1, 2], "text": ["x", ""]}, schema=TEXTS))
    assert read("delta", tmp_path / "t").num_rows == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_was_never_null_may_become_null(kind: str, tmp_path: Path) -> None:
    never = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int16(), nullable=False)])
    add(open_table(kind, tmp_path / "t", never, []), pa.table({"id": [1], "n": [5]}, schema=never))
    later = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int16()), pa.field("more", pa.int8())])
    add(open_table(kind, tmp_path / "t", later, []), pa.table({"id": [2], "n": [None], "more": [7]}, schema=later), 1)
    found = sorted(read(kind, tmp_path / "t").to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "n": 5, "more": None}, {"id": 2, "n": None, "more": 7}]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_in_another_order_are_matched_by_name(kind: str, tmp_path: Path) -> None:
    add(open_table(kind, tmp_path / "t", TEXTS, ["text"]), pa.table({"id": [1], "text": ["a"]}, schema=TEXTS))
    turned = pa.schema([TEXTS.field("text"), TEXTS.field("id")])
    add(open_table(kind, tmp_path / "t", turned, []), pa.table({"text": ["b"], "id": [2]}, schema=turned), 1)
    found = sorted(read(kind, tmp_path / "t").to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


@pytest.mark.parametrize("kind", KINDS)
def test_another_partitioning_than_the_tables_is_refused(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path / "t", TEXTS, ["text"])
    check_partitioning(table, [])
    check_partitioning(table, ["text"])
    with pytest.raises(SchemaMismatch, match="is partitioned by text, the sink has partition_by: id"):
        check_partitioning(table, ["id"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_differs_in_case_alone_is_refused(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path / "t", TEXTS, [])
    with pytest.raises(SchemaMismatch, match="column Text is text"):
        table.fit(pa.schema([pa.field("id", pa.int64()), pa.field("Text", pa.string())]))


def test_iceberg_partitions_by_a_transform_are_refused(tmp_path: Path) -> None:
    from pyiceberg.transforms import BucketTransform

    table = open_table("iceberg", tmp_path / "t", TEXTS, [])
    with table.native.update_spec() as update:  # type: ignore[attr-defined]
        update.add_field("id", BucketTransform(4), "id_bucket")
    with pytest.raises(SchemaMismatch, match=r"partitioned by bucket\[4\]"):
        open_table("iceberg", tmp_path / "t", TEXTS, []).layout(TEXTS)
