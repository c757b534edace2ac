"""Pipelines from end to end: records in, SQL or Python, records or tables out, and what does not fit beside them."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import Consumer

from headrace.cli.pipeline.templates import YAML
from headrace.model.errors import InvalidConfig
from headrace.pipeline.dead_letters import DEAD_ERROR, DEAD_OFFSET, Chosen, DeadLetters
from headrace.pipeline.definition import Format, Pipeline
from headrace.pipeline.errors import InvalidPipelineError
from headrace.pipeline.parser import parse_pipeline
from headrace.pipeline.state import PipelineState
from headrace.spark.connector.checkpoint import CheckpointMismatch
from headrace.spark.pipeline.check import check
from headrace.spark.pipeline.runner import Running
from headrace.spark.pipeline.sinks import RunContext, _add_to_table
from headrace.spark.pipeline.start_offsets import (
    BACKFILL_SUFFIX,
    check_backfill_apart,
    fix_backfill_range,
    unfinished_backfill,
)
from tests.gateways import gateway_alone
from tests.patience import awaited
from tests.spark.kit import SparkKit

WAIT_S = 120


def totals(
    topic: str, sink: str, *, name: str = "totals", sql: str | None = None, starting: str = "earliest"
) -> Pipeline:
    return parse_pipeline(
        f"""\
pipeline: {name}
sources:
  orders:
    topic: {topic}
    starting: {starting}
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


def run(kit: SparkKit, pipeline: Pipeline, folder: Path, **how: bool) -> PipelineState:
    """As its process does, in the session that all tests share."""
    state = PipelineState(pipeline.name, folder)
    run_in(kit, pipeline, state, **how)
    return state


def run_in(kit: SparkKit, pipeline: Pipeline, state: PipelineState, **how: bool) -> None:
    place = RunContext(kit.bootstrap, str(state.checkpoint))
    Running(pipeline, state, place, lambda: None).run(kit.session, **how)


def run_meanwhile(kit: SparkKit, pipeline: Pipeline, folder: Path, look: Callable[[], None]) -> None:
    """As its process does, until somebody in another thread has looked enough: Spark's session is this thread's."""
    state = PipelineState(pipeline.name, folder)
    running = Running(pipeline, state, RunContext(kit.bootstrap, str(state.checkpoint)), lambda: None)
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(look)
        looking.add_done_callback(running.ask_to_stop)
        running.run(kit.session)
    looking.result()


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


def test_rows_go_to_a_topic_and_what_does_not_fit_to_the_dead_letters(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(2)
    out, dead = kit.topic(name=f"{topic}.out"), kit.topic(name=f"{topic}.dead")
    kit.produce(topic, [order(number) for number in range(100)])
    kit.produce(topic, [b"{broken", order(-5)], partition=0)
    pipeline = totals(topic, f"topic: {out}\n  key: customer")
    run(kit, pipeline, tmp_path)
    run(kit, pipeline, tmp_path)  # nothing new: nothing is written twice
    rows = committed(kit, out, 100)
    assert {json.loads(one.value())["id"] for one in rows} == set(range(100))
    assert {one.key() for one in rows} == {b"C0", b"C1", b"C2"}
    letters = committed(kit, dead, 2)
    assert {one.value() for one in letters} == {b"{broken", order(-5)}
    notes = [dict(one.headers()) for one in letters]
    assert {one[DEAD_ERROR] for one in notes} >= {b"rejected: the amount is negative"}
    assert all(int(one[DEAD_OFFSET]) >= 0 for one in notes)
    kit.produce(topic, [order(number) for number in range(100, 110)])
    run(kit, pipeline, tmp_path)
    assert len(committed(kit, out, 110)) == 110


def test_rest_tells_how_a_running_pipeline_fares(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(2)
    out, _ = kit.topic(name=f"{topic}.out"), kit.topic(name=f"{topic}.dead")
    pipeline = totals(topic, f"topic: {out}", name=f"p-{topic}")
    kit.produce(topic, [*(order(number) for number in range(50)), b"{broken"])

    def look() -> None:
        with gateway_alone(kit.bootstrap, tmp_path) as url, httpx.Client(base_url=url, timeout=WAIT_S) as rest:
            first = told_of(rest, pipeline.name, rows=51)
            assert (first["rows_in_total"], first["rows_out_total"], first["dead_letters_total"]) == (51, 50, 1)
            kit.produce(topic, [order(number) for number in range(50, 60)])
            second = told_of(rest, pipeline.name, rows=61)
            assert (second["rows_in_total"], second["rows_out_total"], second["lag_records"]) == (61, 60, 0)
            assert second["batch"] > first["batch"]
            listed = rest.get("/api/v1/pipelines", params={"limit": 1000}).json()["pipelines"]
            assert pipeline.name in {one["pipeline"] for one in listed}

    run_meanwhile(kit, replace(pipeline, trigger="1 second"), tmp_path, look)


def told_of(rest: httpx.Client, name: str, *, rows: int) -> dict[str, Any]:
    """What REST says of a pipeline once it has read so much. Until its first batch REST knows nothing of it."""
    return awaited(
        lambda: rest.get(f"/api/v1/pipelines/{name}").json(),
        lambda told: told.get("rows_in_total", 0) >= rows,
        f"REST tells of {rows} rows",
        WAIT_S,
    )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_takes_each_batch_once(kit: SparkKit, tmp_path: Path, kind: str) -> None:
    topic = kit.topic(2)
    table, backup = tmp_path / "table", tmp_path / "backup"
    pipeline = totals(topic, f"{kind}: {table}")
    dead = kit.topic(name=f"{topic}.dead")
    for start in (0, 50):
        kit.produce(topic, [*(order(number) for number in range(start, start + 50)), b"{broken"])
        run(kit, pipeline, tmp_path)
        if not backup.exists():
            shutil.copytree(PipelineState(pipeline.name, tmp_path).checkpoint, backup)
    assert [one.value() for one in committed(kit, dead, 2)] == [b"{broken", b"{broken"]
    files = _files(kind, str(table))
    assert kit.session.read.parquet(*files).count() == 100
    _forget_last_commit(PipelineState(pipeline.name, tmp_path).checkpoint)
    run(kit, pipeline, tmp_path)  # the batch comes again, as after a crash behind the table's commit
    assert sorted(row.id for row in kit.session.read.parquet(*_files(kind, str(table))).collect()) == list(range(100))
    assert len(kit.values(dead, kafka__isolation__level="read_committed")) == 2, "its letters were there already, too"
    restored, rows = RunContext(kit.bootstrap, str(backup)), kit.session.read.parquet(*_files(kind, str(table)))
    with pytest.raises(CheckpointMismatch, match="has batch 1 of this query"):
        Running(pipeline, PipelineState(pipeline.name, tmp_path), restored, lambda: None).run(kit.session)
    with pytest.raises(CheckpointMismatch, match="plans batch 0"):
        _add_to_table(pipeline, restored, rows, 0)
    PipelineState(pipeline.name, tmp_path).forget()
    run(kit, pipeline, tmp_path)  # from the beginning, as asked: its batches are new ones, though numbered the same
    assert kit.session.read.parquet(*_files(kind, str(table))).count() == 200


def ids(messages: list[Any]) -> list[Any]:
    return sorted(json.loads(one.value())["id"] for one in messages)


def test_history_is_read_up_to_an_exact_offset_and_the_stream_goes_on_from_there(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(2)
    out = kit.topic(name=f"{topic}.out")
    pipeline = totals(topic, f"topic: {out}", starting="latest")
    kit.produce(topic, [order(number) for number in range(60)])
    state = PipelineState(pipeline.name, tmp_path)
    fix_backfill_range(state, state, pipeline, kit.bootstrap, "earliest")
    kit.produce(topic, [order(number) for number in range(60, 80)])  # comes too late to be history
    fix_backfill_range(state, state, pipeline, kit.bootstrap, "latest")  # what was decided stays so
    run(kit, pipeline, tmp_path, only_backfill=True)
    assert ids(committed(kit, out, 60)) == list(range(60))
    assert unfinished_backfill(state) is None
    run(kit, pipeline, tmp_path)
    assert ids(committed(kit, out, 80)) == list(range(80))
    assert len(kit.values(out, kafka__isolation__level="read_committed")) <= 80, "nothing comes behind them"


def test_a_stream_that_runs_already_gets_the_history_before_it(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(2)
    table = tmp_path / "table"
    kit.topic(name=f"{topic}.dead")
    pipeline = totals(topic, f"delta: {table}", starting="latest")
    kit.produce(topic, [*(order(number) for number in range(60)), b"{broken"])
    main = run(kit, pipeline, tmp_path)  # begins at the end: sees nothing of these
    kit.produce(topic, [order(number) for number in range(60, 80)])
    run(kit, pipeline, tmp_path)
    check_backfill_apart(main, pipeline)
    beside = PipelineState(pipeline.name + BACKFILL_SUFFIX, tmp_path)
    fix_backfill_range(beside, main, pipeline, kit.bootstrap, "earliest")
    run_in(kit, pipeline, beside, only_backfill=True)
    run_in(kit, pipeline, beside, only_backfill=True)
    rows = kit.session.read.parquet(*_files("delta", str(table))).collect()
    assert sorted(row.id for row in rows) == list(range(80))
    assert len(kit.values(f"{topic}.dead", kafka__isolation__level="read_committed")) == 1
    progress = beside.read("progress")
    assert (progress["rows_in_total"], progress["rows_out_total"], progress["dead_letters_total"]) == (61, 60, 1)


WINDOWS = """\
pipeline: windows
sources:
  orders: {{topic: "{topic}", format: json, schema: "id bigint, at timestamp", watermark: at 10 seconds}}
sql: select window.start as minute, count(*) as orders from orders group by window(at, '1 minute')
sink: {{topic: "{topic}.out"}}
trigger: available-now
"""


def test_rows_that_come_too_late_are_counted(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(1)
    out = kit.topic(name=f"{topic}.out")
    pipeline = parse_pipeline(WINDOWS.format(topic=topic))
    for times in (("12:00:00", "12:10:00"), ("12:00:30", "12:10:01")):  # the third is for a window that is closed
        kit.produce(topic, [json.dumps({"id": 1, "at": f"2026-01-01T{time}Z"}).encode() for time in times])
        state = run(kit, pipeline, tmp_path)
    assert state.read("progress")["late_rows_total"] == 1
    assert [json.loads(one.value())["orders"] for one in committed(kit, out, 1)] == [1]
    with pytest.raises(InvalidConfig, match="keeps state"):
        check_backfill_apart(state, pipeline)


def test_a_parquet_folder_of_another_checkpoint_is_not_written_to_in_vain(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(1)
    pipeline = totals(topic, f"parquet: {tmp_path / 'table'}")
    kit.produce(topic, [order(1)])
    state = run(kit, pipeline, tmp_path)
    assert kit.session.read.parquet(str(tmp_path / "table")).count() == 1
    state.forget()
    with pytest.raises(InvalidConfig, match="whose checkpoint is missing"):
        run(kit, pipeline, tmp_path)


def _files(kind: str, table: str) -> list[str]:
    if kind == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(table).file_uris())
    import pyarrow as pa

    from headrace.lake.iceberg import IcebergLakeTable

    return IcebergLakeTable.open_or_create(table, pa.schema([])).files()


def _forget_last_commit(checkpoint: Path) -> None:
    commits = sorted(
        (one for one in (checkpoint / "commits").iterdir() if one.name.isdigit()), key=lambda one: int(one.name)
    )
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)


def test_check_says_on_which_line_the_sql_is_wrong(spark: Any) -> None:
    wrong = totals("t", "console: yes", sql="select id,\n    nothing from orders")
    with pytest.raises(InvalidPipelineError) as refused:
        check(spark, wrong)
    assert "pipeline.yaml:12: " in str(refused.value)
    assert "nothing" in str(refused.value)
    assert check(spark, totals("t", "console: yes")).output.columns == ["id", "customer", "twice"]


def test_check_finds_what_only_a_stream_cannot_do(spark: Any) -> None:
    endless = totals("t", "console: yes", sql="select customer, sum(amount) as total from orders group by 1")
    with pytest.raises(InvalidPipelineError, match=r"pipeline.yaml:11: .*without watermark"):
        check(spark, endless)
    check(spark, parse_pipeline(WINDOWS.format(topic="t")))
    check(spark, parse_pipeline(YAML.format(name="totals", file="totals.yaml")))


def test_retried_record_counts_once_also_after_reset(kit: SparkKit, tmp_path: Path) -> None:
    topic, sink, again = kit.topic(2), kit.topic(), kit.topic()
    kit.topic(name=f"{topic}.dead")
    strict = replace(totals(topic, f"topic: {sink}"), retry_topic=f"{topic}.retry")
    lenient = replace(strict, sources=(replace(strict.sources[0], rejects={}),))
    kit.produce(topic, [order(1), order(2)])
    kit.produce(topic, [{"value": order(-3), "headers": [("own", b"h")]}], partition=1)
    run(kit, strict, tmp_path)
    with closing(DeadLetters(kit.bootstrap, f"{topic}.dead", retry_topic=strict.retry_topic)) as letters:
        assert letters.retry(Chosen(strict.name)).sent == 1
        assert letters.retry(Chosen(strict.name)).sent == 0
    assert len(kit.values(topic)) == 3, "other consumers of the source topic read nothing twice"
    run(kit, replace(lenient, sql="select id, _topic, _partition, size(_headers) as headers from orders"), tmp_path)
    rows = {row["id"]: row for row in map(json.loads, kit.values(sink, kafka__isolation__level="read_committed"))}
    assert sorted(rows) == [-3, 1, 2]
    assert rows[-3] == {"id": -3, "_topic": topic, "_partition": 1, "headers": 1}, "as it was where it was first"
    PipelineState(strict.name, tmp_path).forget()
    run(kit, replace(lenient, sink=replace(lenient.sink, target=again)), tmp_path)
    assert ids(committed(kit, again, 3)) == [-3, 1, 2], "once, from the original"
    assert len(kit.values(again, kafka__isolation__level="read_committed")) == 3


def test_retried_record_counts_once_after_reset_and_backfill(kit: SparkKit, tmp_path: Path) -> None:
    topic, sink, again = kit.topic(2), kit.topic(), kit.topic()
    kit.topic(name=f"{topic}.dead")
    strict = replace(totals(topic, f"topic: {sink}"), retry_topic=f"{topic}.retry")
    lenient = replace(
        strict, sources=(replace(strict.sources[0], rejects={}),), sink=replace(strict.sink, target=again)
    )
    kit.produce(topic, [order(1), order(-2)])
    run(kit, strict, tmp_path)
    with closing(DeadLetters(kit.bootstrap, f"{topic}.dead", retry_topic=strict.retry_topic)) as letters:
        assert letters.retry(Chosen(strict.name)).sent == 1
    state = PipelineState(strict.name, tmp_path)
    state.forget()
    fix_backfill_range(state, state, lenient, kit.bootstrap, "earliest")
    kit.produce(topic, [order(3)])
    run(kit, lenient, tmp_path, only_backfill=True)
    run(kit, lenient, tmp_path)
    assert ids(committed(kit, again, 3)) == [-2, 1, 3]
    assert len(kit.values(again, kafka__isolation__level="read_committed")) == 3


def test_retried_record_goes_to_the_source_that_it_did_not_fit(kit: SparkKit, tmp_path: Path) -> None:
    """Another source of the same topic has its row already."""
    topic, sink = kit.topic(), kit.topic()
    kit.topic(name=f"{topic}.dead")
    pipeline = parse_pipeline(
        f"""\
pipeline: both
sources:
  orders: {{topic: {topic}, format: json, schema: id bigint}}
  raw: {{topic: {topic}, format: text}}
sql: select cast(id as string) as id, size(_headers) as n from orders union all select value, size(_headers) from raw
sink: {{topic: {sink}}}
dead_letters: {topic}.dead
retry_topic: {topic}.retry
trigger: available-now
"""
    )
    kit.produce(topic, [{"value": b'{"id": 1}'}, {"value": b"7", "headers": [("own", b"h")]}])
    run(kit, pipeline, tmp_path)
    assert ids(committed(kit, sink, 3)) == ["1", "7", '{"id": 1}']
    with closing(DeadLetters(kit.bootstrap, f"{topic}.dead", retry_topic=pipeline.retry_topic)) as letters:
        assert letters.retry(Chosen(pipeline.name)).sent == 1
    orders, raw = pipeline.sources
    orders = replace(orders, decoding=replace(orders.decoding, format=Format.TEXT, schema=None))
    sql = "select value as id, size(_headers) as n from orders union all select value, size(_headers) from raw"
    run(
        kit,
        replace(pipeline, sources=(orders, raw), sql=sql),
        tmp_path,
    )
    assert ids(committed(kit, sink, 4)) == ["1", "7", "7", '{"id": 1}']
    rows = [json.loads(one) for one in kit.values(sink, kafka__isolation__level="read_committed")]
    assert sorted((row["id"], row["n"]) for row in rows) == [("1", 0), ("7", 1), ("7", 1), ('{"id": 1}', 0)]
