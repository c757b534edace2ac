"""A pipeline file becomes a Pipeline, or a list of its mistakes with their lines."""

import re
from pathlib import Path

import pytest

from headrace.pipeline.definition import Format, OutputMode, SinkKind, Watermark
from headrace.pipeline.errors import InvalidPipelineError
from headrace.pipeline.parser import parse_pipeline, read_pipeline
from headrace.spark.pipeline.start_offsets import source_options

TOTALS = """\
pipeline: totals
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint, customer string, amount double, at timestamp
    watermark: at 10 seconds
    reject:
      the amount is negative: amount < 0
  customers:
    table: /lake/customers
sql: |
  select customer, sum(amount) as total from orders group by customer
sink:
  topic: totals
  key: customer
dead_letters: orders.dead
output_mode: update
trigger: 5 seconds
spark:
  spark.sql.shuffle.partitions: 2
"""


def test_everything_that_a_file_can_say_arrives() -> None:
    pipeline = parse_pipeline(TOTALS)
    orders, customers = pipeline.sources
    assert (pipeline.name, pipeline.group) == ("totals", "headrace-pipeline-totals")
    assert orders.topics == ("orders",)
    assert orders.decoding.format is Format.JSON
    assert orders.watermark == Watermark(column="at", delay="10 seconds")
    assert orders.rejects == {"the amount is negative": "amount < 0"}
    assert (customers.table, customers.is_stream, pipeline.streams) == ("/lake/customers", False, (orders,))
    assert (pipeline.sink.kind, pipeline.sink.target, pipeline.sink.key) == (SinkKind.TOPIC, "totals", "customer")
    assert (pipeline.dead_letters, pipeline.trigger) == ("orders.dead", "5 seconds")
    assert pipeline.output_mode is OutputMode.UPDATE
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "2"}
    assert "sum(amount)" in (pipeline.sql or "")


def test_without_sql_one_source_is_passed_on_as_it_is() -> None:
    text = "pipeline: copy\nsources: {a: {topic: in}}\nsink: {topic: out}\n"
    assert parse_pipeline(text).sql == "select * from a"


def test_a_schema_may_stand_in_a_file_beside_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("id bigint")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "pipeline: p\nsources: {a: {topic: in, format: json, schema_file: orders.ddl}}\nsink: {console: yes}\n"
    )
    assert read_pipeline(file).sources[0].decoding.schema == "id bigint"


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("topic: orders\n", "topics: orders\n"), 4, "did you mean 'topic'?"),
        (("format: json", "format: jsn"), 5, "did you mean 'json'?"),
        (("    schema: id bigint, customer string, amount double, at timestamp\n", ""), 5, "needs a schema"),
        (("format: json", "format: json\n    registry: localhost:8081"), 6, "such as http://localhost:8081"),
        (("format: json", "format: csv\n    registry: http://localhost:8081"), 6, "a registry supports Avro"),
        (("at 10 seconds", "10 seconds"), 7, "a column and a delay"),
        (("  topic: totals", "  topic: orders"), 14, "process its own output"),
        (("dead_letters: orders.dead", "dead_letters: orders"), 17, "would be read again"),
        (("dead_letters: orders.dead", "retry_topic: orders.retry"), 17, "requires `dead_letters`"),
        (("output_mode: update", "output_mode: update\nretry_topic: orders.dead"), 19, "must differ from"),
        (("output_mode: update", "output_mode: update\nretry_topic: orders"), 19, "must differ from"),
        (("output_mode: update", "output_mode: complete"), 18, "append, update"),
        (("trigger: 5 seconds", "trigger: often"), 19, "an interval such as"),
        (("pipeline: totals", "pipeline: to tals"), 1, "letters, digits"),
        (("  orders:\n", "  or-ders:\n"), 3, "invalid source name"),
        (("  key: customer\n", "  key: customer\n  delta: /lake\n"), 15, "exactly one of"),
        (("    table: /lake/customers\n", "    table: /lake/customers\n    topic: x\n"), 11, "exactly one of"),
        (("sink:\n", "sinks:\n"), 14, "did you mean 'sink'?"),
        (("  topic: totals\n", "  delta: /lake/totals\n"), 16, "only records of a topic"),
    ],
)
def test_a_mistake_is_said_with_its_line(change: tuple[str, str], line: int, said: str) -> None:
    assert change[0] in TOTALS
    with pytest.raises(InvalidPipelineError) as refused:
        parse_pipeline(TOTALS.replace(*change), "totals.yaml")
    assert any(problem.line == line and said in problem.text for problem in refused.value.problems), str(refused.value)
    assert f"totals.yaml:{line}: " in str(refused.value)


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(InvalidPipelineError) as refused:
        parse_pipeline("pipeline: p\nsources: {a: {topic: in, format: csv}}\ntriger: 1 second\n")
    said = str(refused.value)
    assert "needs a schema" in said
    assert "needs a sink" in said
    assert "did you mean 'trigger'?" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "must be a mapping"),
        ("pipeline: [", "is not YAML"),
        ("pipeline: p\npipeline: q\nsources: {a: {topic: in}}\nsink: {console: yes}\n", "appears twice"),
    ],
)
def test_what_is_no_pipeline_at_all_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidPipelineError, match=said):
        parse_pipeline(text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError, match="cannot be read"):
        read_pipeline(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("trigger", "triggers", "ms"),
    [("5 seconds", 30, 150_000), ("1 second", 30, 60_000), ("2 minutes", 2, 240_000), ("available-now", 30, 60_000)],
)
def test_so_many_triggers_without_progress_are_a_stall(trigger: str, triggers: int, ms: int) -> None:
    text = f"pipeline: p\nsources: {{a: {{topic: in}}}}\nsink: {{console: yes}}\ntrigger: {trigger}\n"
    assert parse_pipeline(f"{text}stalled_after_triggers: {triggers}\n").stalled_after_ms == ms


@pytest.mark.parametrize(
    ("pattern", "read", "left"),
    [
        ("orders", ["orders"], ["orders.dead", "old-orders"]),
        ("orders-.*|payments", ["orders-eu", "payments"], ["payments.dead", "x-orders-eu"]),
        ("(?i)ORDERS-.", ["orders-1", "Orders-2"], ["orders-12"]),
    ],
)
def test_a_pattern_is_for_whole_names(pattern: str, read: list[str], left: list[str]) -> None:
    source = f'{{o: {{pattern: "{pattern}", format: raw}}}}'
    pipeline = parse_pipeline(f"pipeline: p\nsources: {source}\nsql: select * from o\nsink: {{console: true}}\n")
    expression = source_options(pipeline, "localhost:9092", pipeline.streams[0])["subscribePattern"]
    assert [name for name in read + left if re.search(expression, name)] == read
