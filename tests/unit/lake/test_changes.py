"""Tables that other writers change between two batches: rows that are there keep their values."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.lake.delta import DeltaLakeTable, DeltaMaintenance
from headrace.lake.iceberg import IcebergLakeTable
from headrace.lake.iceberg_compaction import IcebergMaintenance
from headrace.lake.parquet import FileWriter
from headrace.lake.table import Batch, LakeTable, MaintenancePolicy, SchemaMismatch, commit_once, evolve_schema_once
from headrace.lake.table_version import open_version
from tests.unit.lake.lake_tables import delete_in_delta, delete_in_iceberg

NESTED = pa.struct(
    [("city", pa.string()), ("tags", pa.list_(pa.string())), ("sizes", pa.map_(pa.string(), pa.int64()))]
)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("place", NESTED)])
Row = dict[str, Any]


def add(table: LakeTable, number: int, rows: Sequence[Row]) -> None:
    """As a pipeline does it, with the columns that it has always had."""
    evolve_schema_once(table, SCHEMA)
    path = f"{table.location.removeprefix('file://')}/data/file-{number}.parquet"
    writer = FileWriter(path, table.layout(SCHEMA).file_schema)
    writer.write(pa.RecordBatch.from_pylist(list(rows), SCHEMA))
    assert commit_once(table, [writer.close()], Batch("p", number))


def row(number: int) -> Row:
    return {"id": number, "name": f"n{number}", "place": {"city": "x", "tags": ["t"], "sizes": [("s", number)]}}


def rows(place: Path) -> list[Row]:
    version = open_version(str(place))
    found = [one for part in version.parts() for batch in part.batches(version.schema) for one in batch.to_pylist()]
    return sorted(found, key=lambda one: one["id"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def iceberg(place: Path) -> IcebergLakeTable:
    return IcebergLakeTable.open_or_create(str(place), SCHEMA)


def test_new_column_under_the_name_of_a_renamed_one_takes_no_values(iceberg: IcebergLakeTable, place: Path) -> None:
    add(iceberg, 0, [row(1)])
    with iceberg.native.update_schema() as change:
        change.rename_column("name", "title")
    add(IcebergLakeTable.open(str(place)), 1, [row(2)])
    assert rows(place) == [
        {"id": 1, "title": "n1", "place": row(1)["place"], "name": None},
        {"id": 2, "title": None, "place": row(2)["place"], "name": "n2"},
    ]


def test_dropped_column_that_is_added_again_is_empty(iceberg: IcebergLakeTable, place: Path) -> None:
    add(iceberg, 0, [row(1)])
    with iceberg.native.update_schema() as change:
        change.delete_column("name")
    add(IcebergLakeTable.open(str(place)), 1, [row(2)])
    assert [(one["id"], one["name"]) for one in rows(place)] == [(1, None), (2, "n2")]


def test_merged_files_keep_the_values_of_renamed_columns(iceberg: IcebergLakeTable, place: Path) -> None:
    for number in range(3):
        add(iceberg, number, [row(number)])
    with iceberg.native.update_schema() as change:
        change.rename_column("name", "title")
    table = IcebergLakeTable.open(str(place))
    assert IcebergMaintenance(table.native).compact(MaintenancePolicy()) == 3
    assert [(one["id"], one["title"]) for one in rows(place)] == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert len(IcebergLakeTable.open(str(place)).files()) == 1


def test_merged_iceberg_files_leave_out_deleted_rows(iceberg: IcebergLakeTable, place: Path) -> None:
    add(iceberg, 0, [row(0), row(1)])
    add(iceberg, 1, [row(2)])
    delete_in_iceberg(iceberg.native, next(path for path in iceberg.files() if path.endswith("file-0.parquet")), [0])
    table = IcebergLakeTable.open(str(place))
    assert IcebergMaintenance(table.native).compact(MaintenancePolicy()) == 2
    assert rows(place) == [row(1), row(2)]


def test_iceberg_files_with_deletes_by_equality_are_not_merged(iceberg: IcebergLakeTable, place: Path) -> None:
    add(iceberg, 0, [row(0), row(1)])
    add(iceberg, 1, [row(2)])
    delete_in_iceberg(iceberg.native, "", [0], by_equality=True)
    assert (
        IcebergMaintenance(IcebergLakeTable.open(str(place)).native).small_files(MaintenancePolicy(small_files_max=0))
        == 0
    )


def test_merged_delta_files_leave_out_deleted_rows(place: Path) -> None:
    table = DeltaLakeTable.open_or_create(str(place), SCHEMA)
    add(table, 0, [row(0), row(1)])
    add(table, 1, [row(2)])
    delete_in_delta(place, "data/file-0.parquet", [0])
    assert DeltaMaintenance(DeltaLakeTable.open(str(place)).native).compact(MaintenancePolicy()) == 2
    assert rows(place) == [row(1), row(2)]


def commit_metadata(place: Path, configuration: dict[str, str], column: dict[str, Any], protocol: Row) -> None:
    """What another writer makes of the table: its properties, and a rule for the column `name`."""
    log = place / "_delta_log"
    lines = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    metadata = [line["metaData"] for line in lines if "metaData" in line][-1]
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = column if field["name"] == "name" else {}
        if "delta.columnMapping.mode" in configuration:
            field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    metadata |= {"schemaString": json.dumps(schema), "configuration": configuration}
    version = DeltaTable(str(place)).version() + 1
    text = "\n".join(json.dumps(one) for one in ({"protocol": protocol}, {"metaData": metadata}))
    (log / f"{version:020}.json").write_text(text + "\n")


LEGACY = {"minReaderVersion": 2, "minWriterVersion": 6}
FEATURES = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["icebergCompatV2"]}


@pytest.mark.parametrize(
    ("configuration", "column", "protocol", "why"),
    [
        ({"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}, {}, LEGACY, "maps its columns"),
        ({"delta.constraints.positive": "id > 0"}, {}, LEGACY, "delta.constraints.positive"),
        ({}, {"delta.generationExpression": "cast(id as string)"}, LEGACY, "values of name"),
        ({"delta.enableRowTracking": "true"}, {}, LEGACY, "delta.enableRowTracking"),
        ({}, {}, FEATURES, "icebergCompatV2"),
    ],
)
def test_delta_table_with_rules_that_are_not_kept_is_refused(
    place: Path, configuration: dict[str, str], column: dict[str, Any], protocol: Row, why: str
) -> None:
    """Another writer may set them between two batches, and between the files of a batch and its commit."""
    flat = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")])
    table = DeltaLakeTable.open_or_create(str(place), flat)
    assert commit_once(table, [], Batch("p", 0))
    commit_metadata(place, configuration, column, protocol)
    with pytest.raises(SchemaMismatch, match=why):
        commit_once(table, [], Batch("p", 1))
    with pytest.raises(SchemaMismatch, match=why):
        DeltaLakeTable.open(str(place)).new_columns(flat)


def test_notes_are_found_behind_many_commits_of_others(place: Path) -> None:
    """They hold the end offsets, by which a restored checkpoint is recognized."""
    table = DeltaLakeTable.open_or_create(str(place), SCHEMA)
    assert commit_once(table, [], Batch("p", 0, {"ends": "here"}))
    for number in range(110):
        assert commit_once(table, [], Batch("q", number))
    assert DeltaLakeTable.open(str(place)).notes("p") == {"ends": "here"}
