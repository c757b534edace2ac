"""Rows of every type and with special values, from a pipeline to each sink of files, read back by other libraries."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.errors import StreamingQueryException

from headrace.lake.iceberg import IcebergLakeTable
from headrace.pipeline.definition import Pipeline, Source
from headrace.pipeline.errors import InvalidPipelineError
from headrace.pipeline.parser import parse_pipeline
from headrace.spark.pipeline.check import check
from tests.spark.kit import SparkKit
from tests.spark.test_pipelines import run
from tests.unit.lake.lake_values import PARTITIONS, SCHEMA, plain, reference
from tests.unit.lake.test_values import read

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def pipeline_to(sink: str, topic: str = "t", table: Path | None = None, *, sql: str = "") -> Pipeline:
    pipeline = parse_pipeline(
        f"""\
pipeline: values
sources:
  keys: {{topic: {topic}, format: json, schema: id bigint}}
sql: >
  {sql or "select wide.* from keys join wide using (id)"}
sink: {{{sink}}}
trigger: available-now
"""
    )
    if table is None:
        return pipeline
    return replace(pipeline, sources=(*pipeline.sources, Source(name="wide", table=str(table))))


def partitioned() -> str:
    return f"partition_by: [{', '.join(PARTITIONS)}]"


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_every_type_and_value_reaches_the_sink(kit: SparkKit, tmp_path: Path, kind: str) -> None:
    topic = kit.topic(2)
    rows = reference()
    if kind == "parquet":  # a directory's name is its value: of at most 255 bytes, and one stands for null
        rows = [row | {"p_str": row["p_str"] and row["p_str"][:60].replace(HIVE_NULL, "x")} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "wide.parquet")
    pipeline = pipeline_to(f"{kind}: '{tmp_path / 'tab le'}', {partitioned()}", topic, tmp_path / "wide.parquet")
    half = len(rows) // 2
    for part in (range(half), range(half, len(rows))):
        kit.produce(topic, [b'{"id": %d}' % number for number in part])
        run(kit, pipeline, tmp_path)
    found = plain(_parquet(kit, tmp_path / "tab le") if kind == "parquet" else read(kind, tmp_path / "tab le"))
    assert found == rows
    assert "INT96" not in {kind for file in tmp_path.rglob("*.parquet") for kind in _physical(file).values()}


def _parquet(kit: SparkKit, path: Path) -> pa.Table:
    """By Spark, the one reader of the sink's log; values of directories have no types, so it is given them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
    return kit.session.read.schema(schema).parquet(str(path)).toArrow()


def _physical(file: Path) -> Mapping[str, str]:
    schema = pq.ParquetFile(file).schema
    return {schema.column(n).path: schema.column(n).physical_type for n in range(len(schema.names))}


def test_all_columns_of_a_source_reach_an_iceberg_table(kit: SparkKit, tmp_path: Path) -> None:
    """`_timestamp` among them; and a count, which Spark knows as never null."""
    topic = kit.topic(1)
    kit.produce(topic, [{"value": b'{"id": 7}', "key": b"k", "timestamp": 1_700_000_000_123, "headers": [("h", b"x")]}])
    sql = "select *, cast(1 as smallint) as one, length(_topic) as n, 5 as never_null from keys"
    pipeline = pipeline_to(f"iceberg: {tmp_path / 'table'}", topic, sql=sql)
    for number in range(2):
        kit.produce(topic, [b'{"id": %d}' % number])
        run(kit, pipeline, tmp_path)
    rows = IcebergLakeTable.open(str(tmp_path / "table")).native.scan().to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [0, 1, 7]
    row = next(row for row in rows if row["id"] == 7)
    assert row["_timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (row["_key"], row["one"], row["n"], row["never_null"]) == (b"k", 1, len(topic), 5)
    assert row["_headers"] == [{"key": "h", "value": b"x"}]


@pytest.mark.parametrize(("kind", "text"), [("delta", ""), ("parquet", ""), ("parquet", HIVE_NULL)])
def test_a_text_that_would_be_read_as_null_is_refused(kit: SparkKit, tmp_path: Path, kind: str, text: str) -> None:
    topic = kit.topic(1)
    kit.produce(topic, [b'{"id": 1}'])
    sql = f"select id, '{text}' as text from keys"
    pipeline = pipeline_to(f"{kind}: {tmp_path / 'table'}, partition_by: text", topic, sql=sql)
    with pytest.raises(StreamingQueryException, match="cannot be the value of the partition column text"):
        run(kit, pipeline, tmp_path)


WRONG = [
    ("delta iceberg parquet", "select id, null as x from keys", "", "column x is void"),
    ("delta iceberg parquet", "select id, make_interval(1, 2) as x from keys", "", "column x is interval"),
    ("delta iceberg", "select id, interval 1 day as x from keys", "", "column x is interval day"),
    ("delta iceberg", "select id, interval 1 month as x from keys", "", "column x is interval month"),
    ("delta iceberg", "select id, array(parse_json('1')) as x from keys", "", "column x is variant"),
    ("delta iceberg parquet", "select id, struct() as x from keys", "", "column x is struct<>"),
    ("delta iceberg parquet", "select id, map('a', null) as x from keys", "", "column x is void"),
    ("delta iceberg parquet", "select id, id as ID from keys", "", "two columns id and ID"),
    ("delta iceberg parquet", "select id, struct(1 as a, 2 as A) as x from keys", "", "two columns a and A"),
    ("delta iceberg parquet", "select id, 1 as a from keys", "b", "there is no column b"),
    ("delta iceberg parquet", "select id, 1.5D as a from keys", "a", "a is double"),
    ("delta iceberg parquet", "select id, binary('a') as a from keys", "a", "a is binary"),
    ("delta iceberg parquet", "select id, array(1) as a from keys", "a", "a is array<int>"),
    ("delta parquet", "select id from keys", "id", "needs a column that"),
    ("delta iceberg parquet", "select id, 1 as a from keys", "a, a", "twice"),
]


def test_check_refuses_what_a_sink_cannot_write(spark: Any, tmp_path: Path) -> None:
    for kinds, sql, partition_by, said in WRONG:
        for kind in kinds.split():
            by = f", partition_by: [{partition_by}]" if partition_by else ""
            with pytest.raises(InvalidPipelineError) as refused:
                check(spark, pipeline_to(f"{kind}: {tmp_path / 'table'}{by}", sql=sql))
            assert said in str(refused.value), (kind, sql)
            line = 6 if partition_by else 5
            assert f"pipeline.yaml:{line}: " in str(refused.value), (kind, sql)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_check_compares_with_the_table_that_is_there(spark: Any, tmp_path: Path, kind: str) -> None:
    from tests.unit.lake.test_values import TEXTS, open_table

    open_table(kind, tmp_path / "table", TEXTS, ["text"])
    fits = f"{kind}: {tmp_path / 'table'}"
    check(spark, pipeline_to(fits, sql="select id, 'a' as text, 1 as more from keys"))
    for sink, sql, said in [
        (fits, "select id, 1 as text from keys", "column text of"),
        (fits + ", partition_by: id", "select id, 'a' as text from keys", "is partitioned by text"),
    ]:
        with pytest.raises(InvalidPipelineError, match=said):
            check(spark, pipeline_to(sink, sql=sql))
