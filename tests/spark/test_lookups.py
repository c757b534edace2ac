"""Tables that a pipeline joins or a query names: as their logs say, and as of the micro-batch that reads them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headrace.lake.iceberg import IcebergLakeTable
from headrace.pipeline.definition import Source
from headrace.pipeline.parser import parse_pipeline
from headrace.spark.sql.views import table_frame
from tests.patience import awaited
from tests.spark.kit import SparkKit
from tests.spark.test_pipelines import WAIT_S, run_meanwhile
from tests.unit.lake.lake_tables import delete_in_delta, delete_in_iceberg
from tests.unit.lake.lake_values import PARTITIONS, SCHEMA, plain, reference
from tests.unit.lake.test_values import add, open_table

PIPELINE = """\
pipeline: prices
sources:
  orders: {{topic: {topic}, format: json, schema: "id bigint, item bigint"}}
sql: >
  select orders.id, prices.version, again.version as again, names.name
  from orders join prices using (item) join again using (item) left join names using (item)
sink: {{delta: {sink}}}
"""


def set_prices(place: Path, version: int) -> None:
    """In place of the older ones, whose files are removed at once."""
    rows = pa.table({"item": [1, 2], "version": [version, version], "day": [f"{version}/1", None]})
    write_deltalake(str(place), rows, mode="overwrite", partition_by=["day"])
    DeltaTable(str(place)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def set_names(place: Path, version: int) -> None:
    rows = pa.table({"item": [1, 2], "name": [f"one-{version}", f"two-{version}"]})
    table = IcebergLakeTable.open_or_create(str(place), rows.schema).native
    if version:
        table.overwrite(rows)
    else:
        table.append(rows)


def test_lookups_follow_the_newest_version_of_their_tables(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(2)
    prices, names, sink = tmp_path / "pri ces", tmp_path / "names", tmp_path / "sink"
    tables = (
        Source(name="prices", table=str(prices)),
        Source(name="again", table=str(prices)),
        Source(name="names", table=str(names)),
    )
    pipeline = parse_pipeline(PIPELINE.format(topic=topic, sink=sink))
    pipeline = replace(pipeline, sources=(*pipeline.sources, *tables))

    def rows() -> list[dict[str, Any]]:
        return DeltaTable(str(sink)).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(str(sink)) else []

    def look() -> None:
        for version in range(3):
            if version:
                set_prices(prices, version)
                set_names(names, version)
            order = {"id": version, "item": 1 + version % 2}
            kit.produce(topic, [json.dumps(order).encode()])
            awaited(rows, lambda found, wanted=version: len(found) > wanted, f"{version + 1} rows", WAIT_S)

    set_prices(prices, 0)
    set_names(names, 0)
    run_meanwhile(kit, pipeline, tmp_path, look)
    found = sorted(rows(), key=lambda row: int(row["id"]))
    assert found == [
        {"id": 0, "version": 0, "again": 0, "name": "one-0"},
        {"id": 1, "version": 1, "again": 1, "name": "two-1"},
        {"id": 2, "version": 2, "again": 2, "name": "one-2"},
    ]


def test_a_query_reads_tables_as_their_logs_say(kit: SparkKit, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(reference(), SCHEMA)
    for kind in ("delta", "iceberg"):
        add(open_table(kind, tmp_path / f"{kind} ü", SCHEMA, [*PARTITIONS]), rows)
        assert plain(table_frame(kit.session, str(tmp_path / f"{kind} ü")).toArrow()) == reference()

    add(open_table("delta", tmp_path / "d", pa.schema([SCHEMA.field("id")]), []), rows.select(["id"]))
    [path] = DeltaTable(str(tmp_path / "d")).get_add_actions().column("path").to_pylist()
    delete_in_delta(tmp_path / "d", path, [0, 2])
    add(table := open_table("iceberg", tmp_path / "i", pa.schema([SCHEMA.field("id")]), []), rows.select(["id"]))
    delete_in_iceberg(table.native, table.files()[0], [1, 3])  # type: ignore[attr-defined]
    ids = rows["id"].to_pylist()
    for place, deleted in (("d", {0, 2}), ("i", {1, 3})):
        found = table_frame(kit.session, str(tmp_path / place)).where("id >= 0").collect()
        assert sorted(row.id for row in found) == [one for one in ids if one not in deleted]
