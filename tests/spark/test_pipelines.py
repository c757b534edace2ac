"""Pipelines from end to end: records in, SQL or Python, records or tables out, and what does not fit beside them."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from headrace.spark.pipeline.checking import check
from headrace.spark.pipeline.plan import DEAD_ERROR, DEAD_OFFSET, plan
from headrace.spark.pipeline.problems import PipelineRefused
from headrace.spark.pipeline.sinks import start_queries
from headrace.spark.pipeline.spec import Pipeline
from headrace.spark.pipeline.worker import open_stream
from headrace.spark.pipeline.yaml_file import parse_pipeline
from tests.spark.kit import SparkKit

WAIT_S = 120


def totals(topic: str, sink: str, *, name: str = "totals", sql: str | None = None) -> Pipeline:
    return parse_pipeline(
        f"""\
pipeline: {name}
sources:
  orders:
    topic: {topic}
    format: json
    schema: id bigint, customer string, amount double
    reject:
      the amount is negative: amount < 0
sql: |
  {sql or "select id, upper(customer) as customer, amount * 2 as twice from orders"}
sink:
  {sink}
dead_letters: {topic}.dead
trigger: available-now
"""
    )


def run(kit: SparkKit, pipeline: Pipeline, checkpoint: Path) -> None:
    planned = plan(kit.session, pipeline, lambda source: open_stream(kit.session, pipeline, kit.bootstrap, source))
    for query in start_queries(pipeline, planned, kit.bootstrap, str(checkpoint)):
        assert query.awaitTermination(WAIT_S), "it reads what is there and ends"


def order(number: int) -> bytes:
    return json.dumps({"id": number, "customer": f"c{number % 3}", "amount": float(number)}).encode()


def committed(kit: SparkKit, topic: str, count: int) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": kit.bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "earliest",
         "isolation.level": "read_committed", "enable.partition.eof": True}
    )  # fmt: skip
    consumer.subscribe([topic])
    messages: list[Any] = []
    for _ in range(WAIT_S):
        if len(messages) >= count:
            break
        messages += [one for one in consumer.consume(count, 1) if one.error() is None]
    consumer.close()
    return messages


def test_rows_go_to_a_topic_and_what_does_not_fit_to_the_dead_letters(kit: SparkKit, checkpoint: Path) -> None:
    topic = kit.topic(2)
    out, dead = kit.topic(name=f"{topic}.out"), kit.topic(name=f"{topic}.dead")
    kit.produce(topic, [order(number) for number in range(100)])
    kit.produce(topic, [b"{broken", order(-5)], partition=0)
    pipeline = totals(topic, f"topic: {out}\n  key: customer")
    run(kit, pipeline, checkpoint)
    run(kit, pipeline, checkpoint)  # nothing new: nothing is written twice
    rows = committed(kit, out, 100)
    assert {json.loads(one.value())["id"] for one in rows} == set(range(100))
    assert {one.key() for one in rows} == {b"C0", b"C1", b"C2"}
    letters = committed(kit, dead, 2)
    assert {one.value() for one in letters} == {b"{broken", order(-5)}
    notes = [dict(one.headers()) for one in letters]
    assert {one[DEAD_ERROR] for one in notes} >= {b"rejected: the amount is negative"}
    assert all(int(one[DEAD_OFFSET]) >= 0 for one in notes)
    kit.produce(topic, [order(number) for number in range(100, 110)])
    run(kit, pipeline, checkpoint)
    assert len(committed(kit, out, 110)) == 110


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_takes_each_batch_once(kit: SparkKit, checkpoint: Path, tmp_path: Path, kind: str) -> None:
    topic = kit.topic(2)
    table = tmp_path / "table"
    pipeline = totals(topic, f"{kind}: {table}")
    dead = kit.topic(name=f"{topic}.dead")
    for start in (0, 50):
        kit.produce(topic, [*(order(number) for number in range(start, start + 50)), b"{broken"])
        run(kit, pipeline, checkpoint)
    assert [one.value() for one in committed(kit, dead, 2)] == [b"{broken", b"{broken"]
    files = _files(kind, str(table))
    assert kit.session.read.parquet(*files).count() == 100
    _forget_last_commit(checkpoint)
    run(kit, pipeline, checkpoint)  # the batch comes again, as after a crash behind the table's commit
    assert sorted(row.id for row in kit.session.read.parquet(*_files(kind, str(table))).collect()) == list(range(100))


def _files(kind: str, table: str) -> list[str]:
    if kind == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(table).file_uris())
    import pyarrow as pa

    from headrace.spark.lake.iceberg import IcebergLakeTable

    return IcebergLakeTable.open_or_create(table, pa.schema([])).files()


def _forget_last_commit(checkpoint: Path) -> None:
    commits = sorted(
        (one for one in (checkpoint / "commits").iterdir() if one.name.isdigit()), key=lambda one: int(one.name)
    )
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)


def test_check_says_on_which_line_the_sql_is_wrong(spark: Any) -> None:
    wrong = totals("t", "console: yes", sql="select id,\n    nothing from orders")
    with pytest.raises(PipelineRefused) as refused:
        check(spark, wrong)
    assert "pipeline.yaml:11: " in str(refused.value)
    assert "nothing" in str(refused.value)
    assert check(spark, totals("t", "console: yes")).output.columns == ["id", "customer", "twice"]
