"""`headrace pipeline check` says on which line a mistake is, whichever part of the file it is in; a run does, too."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.cli.app import run
from headrace.cli.common.exit_codes import FAILURE, USAGE
from headrace.cli.pipeline.templates import PYTHON as PYTHON_TEMPLATE
from headrace.cli.pipeline.templates import YAML as YAML_TEMPLATE
from headrace.pipeline.definition import Source
from headrace.pipeline.errors import InvalidPipelineError
from tests.spark.kit import SparkKit
from tests.spark.test_pipelines import run as run_pipeline
from tests.spark.test_pipelines import totals

YAML = """\
pipeline: totals
sources:
  orders:
    topic: orders
    format: json
    schema: |
      id bigint,
      customer string,
      amount double,
      at timestamp
    watermark: at 10 seconds
    reject:
      the amount is negative: amount < 0
      there is no customer: customer is null
  refunds:
    topic: refunds
    format: avro
    schema_file: refunds.avsc
  returns:
    topic: returns
    format: protobuf
    message: Return
    schema: |
      syntax = "proto3";
      message Return {
        int64 id = 1;
      }
sql: |
  select id, amount
  from orders
sink:
  topic: totals
  key: id
"""
AVRO = '{"type": "record",\n "name": "Refund",\n "fields": [{"name": "id", "type": "long"}]}\n'
PYTHON = """\
from headrace.pipeline.python_api import pipeline, topic


def doubled(rows):
    return rows.selectExpr("id", "amount * 2 as twice")


@pipeline(
    orders=topic(
        "orders",
        format="json",
        schema="id bigint, amount double",
        reject={
            "the amount is negative": "amount < 0",
            "there is no id": "id is null",
        },
    ),
    sink=topic("totals", key="id"),
    dead_letters="dead",
)
def totals(orders):
    rows = doubled(orders)
    return rows.where("twice > 0")
"""


def checked(folder: Path, name: str, text: str) -> int:
    file = folder / name
    file.write_text(text)
    return run(["pipeline", "check", str(file)])


def assert_told(capsys: pytest.CaptureFixture[str], where: str, said: str) -> None:
    told = capsys.readouterr().err
    assert where in told
    assert said in told


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("customer string,\n", "customer str ing,\n"), 8, "ing"),
        (("at timestamp\n", "at timestamq\n"), 10, "TIMESTAMQ"),
        (("at 10 seconds", "noon 10 seconds"), 11, "noon"),
        (("amount < 0", "amunt < 0"), 13, "amunt"),
        (("customer is null", "customer is is null"), 14, "is"),
        (("customer is null", "length(customer)"), 14, "boolean"),
        (("message: Return", "message: Retour"), 22, "it has Return"),
        (("int64 id = 1;", "int64 id = 1"), 27, "does not compile"),
        (("int64 id", "int65 id"), 26, "int65"),
        (("select id, amount", "select id, amuont"), 29, "amuont"),
        (("from orders", "from order"), 30, "order"),
        (("select id", "select id customer,"), 29, "Syntax error"),
        (("key: id", "key: customer"), 33, "customer"),
        (("key: id", "key: id +"), 33, "Syntax error"),
        (("sql: |\n", "sql: |\n\n"), 34, "nothing"),
        (("  key: id\n", "  format: raw\n"), 33, "value"),
    ],
)
def test_a_mistake_in_yaml_has_its_line(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    line: int,
    said: str,
) -> None:
    assert change[0] in YAML
    (tmp_path / "refunds.avsc").write_text(AVRO)
    text = YAML.replace(*change)
    if said == "nothing":  # the lines behind the SQL move with it
        text = text.replace("key: id", "key: nothing")
    assert checked(tmp_path, "totals.yaml", text) == USAGE
    assert_told(capsys, f"error: {tmp_path / 'totals.yaml'}:{line}: ", said)


@pytest.mark.parametrize(
    ("schema", "where", "said"),
    [
        (AVRO.replace('"Refund",', '"Refund"'), "refunds.avsc:3: ", "is JSON, and this is not"),
        (AVRO.replace('"long"', '"lung"'), "refunds.avsc: ", "'lung' is unknown"),
        (AVRO.replace('"record"', '"enum"'), "refunds.avsc: ", "one of a record"),
        (AVRO.replace('"type": "long"', '"typ": "long"'), "refunds.avsc: ", "is missing 'type'"),
    ],
)
def test_a_mistake_in_a_schema_file_has_both_lines(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], schema: str, where: str, said: str
) -> None:
    (tmp_path / "refunds.avsc").write_text(schema)
    assert checked(tmp_path, "totals.yaml", YAML) == USAGE
    assert_told(capsys, f"totals.yaml:18: {where}", said)


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("amount * 2", "amuont * 2"), 5, "amuont"),
        (('"twice > 0"', '"twise > 0"'), 23, "twise"),
        (('rows.where("twice > 0")', "rows + 1"), 23, "TypeError"),
        (('return rows.where("twice > 0")', "return 5"), 21, "must return a DataFrame, not int"),
        (("id bigint, amount", "id big int, amount"), 12, "int"),
        (("amount < 0", "amunt < 0"), 14, "amunt"),
        (("id is null", "id is is null"), 15, "is"),
        (('key="id"', 'key="di"'), 18, "di"),
    ],
)
def test_a_mistake_in_python_has_its_line(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    line: int,
    said: str,
) -> None:
    assert change[0] in PYTHON
    assert checked(tmp_path, "totals.py", PYTHON.replace(*change)) == USAGE
    assert_told(capsys, f"error: {tmp_path / 'totals.py'}:{line}: ", said)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("totals.yaml", YAML, {"id": "bigint", "amount": "double"}),
        ("totals.py", PYTHON, {"id": "bigint", "twice": "double"}),
        ("a.yaml", YAML_TEMPLATE.format(name="a", file="a.yaml"), {"minute": "timestamp", "total": "double"}),
        ("a.py", PYTHON_TEMPLATE.format(name="a"), {"minute": "timestamp", "total": "double"}),
    ],
)
def test_what_is_right_is_shown_with_its_columns(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    columns: dict[str, str],
) -> None:
    (tmp_path / "refunds.avsc").write_text(AVRO)
    assert checked(tmp_path, name, text) == 0
    told = capsys.readouterr().out
    rows = [line.split() for line in told.splitlines()]
    assert all([column, kind] in rows for column, kind in columns.items()), told


def test_a_registry_that_is_away_is_no_mistake_of_the_file(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = "http://127.0.0.1:1"
    text = f"pipeline: p\nsources: {{a: {{topic: t, format: avro, registry: '{away}'}}}}\nsink: {{console: yes}}\n"
    assert checked(tmp_path, "p.yaml", text) == FAILURE
    assert f"the registry {away} cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select nothing from orders", "pipeline.yaml:11: .*nothing"),
        ("selct id from orders", "pipeline.yaml:11: .*Syntax error"),
        ("select customer, sum(amount) from orders group by 1", "pipeline.yaml:11: .*without watermark"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_and_not_tried_again(
    kit: SparkKit, tmp_path: Path, sql: str, said: str
) -> None:
    topic = kit.topic(1)
    pipeline = totals(topic, f"delta: {tmp_path / 'table'}", sql=sql)
    with pytest.raises(InvalidPipelineError, match=said):
        run_pipeline(kit, pipeline, tmp_path)


def test_a_table_that_is_not_there_yet_is_tried_again(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic(1)
    pipeline = totals(topic, "console: yes", sql="select * from orders join things using (id)")
    pipeline = replace(pipeline, sources=(*pipeline.sources, Source(name="things", table=str(tmp_path / "nowhere"))))
    with pytest.raises(PySparkException, match="PATH_NOT_FOUND"):
        run_pipeline(kit, pipeline, tmp_path)
