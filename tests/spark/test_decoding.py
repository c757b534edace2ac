"""Every format: good records become columns, bad ones dead letters with their bytes, headers and position."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.model.errors import InvalidConfig
from headrace.pipeline.dead_letters import DEAD_ERROR, DEAD_OFFSET, DEAD_TOPIC
from headrace.pipeline.definition import Decoding, Format, Pipeline, Sink, SinkKind, Source
from headrace.spark.pipeline.decode_protobuf import compile_proto, find_message
from headrace.spark.pipeline.query import HEADERS, PipelineQuery, plan, records

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "what", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string customer = 2;
  google.protobuf.Timestamp at = 3;
  uint64 big = 4;
  enum State { NEW = 0; PAID = 1; }
  State state = 5;
  message Line { string what = 1; int32 count = 2; }
  repeated Line lines = 6;
  map<string, string> tags = 7;
  bytes photo = 8;
}
"""


def raw(spark: SparkSession, *values: bytes | None) -> DataFrame:
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    headers = [("trace", b"1")]
    rows = [(b"k", value, "orders", 0, offset, AT, headers) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, f"{columns}, headers {HEADERS}")


def pipeline(decoding: Decoding, *, sql: str = "select * from orders", **fields: Any) -> Pipeline:
    source = Source(name="orders", topics=("orders",), decoding=decoding, rejects=fields.pop("rejects", {}))
    sink = fields.pop("sink", Sink(kind=SinkKind.CONSOLE))
    return Pipeline(name="p", sources=(source,), sink=sink, sql=sql, **{"dead_letters": "dead", **fields})


def planned(spark: SparkSession, one: Pipeline, *values: bytes | None) -> PipelineQuery:
    return plan(spark, one, lambda _: raw(spark, *values))


def dead(one: PipelineQuery) -> list[tuple[bytes | None, dict[str, str]]]:
    assert one.dead is not None
    return [
        (row.value and bytes(row.value), {key: bytes(value).decode() for key, value in row.headers})
        for row in one.dead.collect()
    ]


def test_json_becomes_columns_and_what_does_not_fit_a_dead_letter(spark: SparkSession) -> None:
    decoding = Decoding(format=Format.JSON, schema="id bigint, name string")
    values = (b'{"id": 1, "name": "a"}', b"{not json", b'{"id": "x"}', b"17", None, b'{"id": 2}')
    result = planned(spark, pipeline(decoding, sql="select id, name, _offset from orders"), *values)
    rows = {tuple(row) for row in result.output.collect()}
    assert rows == {(1, "a", 0), (2, None, 5)}
    letters = dead(result)
    assert {value for value, _ in letters} == {b"{not json", b'{"id": "x"}', b"17", None}
    assert all(headers["trace"] == "1" and headers[DEAD_TOPIC] == "orders" for _, headers in letters)
    errors = {headers[DEAD_OFFSET]: headers[DEAD_ERROR] for _, headers in letters}
    assert errors.pop("1").startswith("not JSON: ")
    assert errors == {
        "2": "id: 'x' is no int64",
        "3": "a JSON number, not an object",
        "4": "the record has no value (a tombstone); allow it with tombstones: nulls",
    }


def test_a_rule_rejects_rows_that_decode(spark: SparkSession) -> None:
    decoding = Decoding(format=Format.JSON, schema="id bigint, amount double")
    one = pipeline(decoding, rejects={"negative": "amount < 0", "no id": "id is null"})
    result = planned(spark, one, b'{"id": 1, "amount": 2}', b'{"id": 2, "amount": -1}', b'{"amount": 1}', b'{"id": 3}')
    assert {row.id for row in result.output.collect()} == {1, 3}
    assert {headers[DEAD_ERROR] for _, headers in dead(result)} == {"rejected: negative", "rejected: no id"}


def test_without_a_place_for_dead_letters_a_bad_record_stops_the_pipeline(spark: SparkSession) -> None:
    one = pipeline(Decoding(format=Format.JSON, schema="id bigint"), dead_letters=None)
    result = planned(spark, one, b'{"id": 1}', b"oops")
    with pytest.raises(PySparkException, match=r"orders partition 0 offset 1.*dead_letters: p\.dead"):
        result.output.collect()


def test_csv_text_and_raw(spark: SparkSession) -> None:
    csv = pipeline(Decoding(format=Format.CSV, schema="id int, name string", options={"sep": ";"}))
    result = planned(spark, csv, b"1;a", b"x;y")
    assert [(row.id, row.name) for row in result.output.collect()] == [(1, "a")]
    assert [value for value, _ in dead(result)] == [b"x;y"]
    text = planned(spark, pipeline(Decoding(format=Format.TEXT)), "ü".encode(), b"\xff\xfe", None)
    assert [row.value for row in text.output.collect()] == ["ü", None]
    assert [value for value, _ in dead(text)] == [b"\xff\xfe"]
    as_it_is = planned(spark, pipeline(Decoding(format=Format.RAW)), b"\xff\xfe")
    assert [bytes(row.value) for row in as_it_is.output.collect()] == [b"\xff\xfe"]


def avro(row: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


def test_avro_becomes_columns_of_every_type(spark: SparkSession) -> None:
    lines = [{"what": "x", "count": 2}]
    good = avro({"id": 7, "customer": None, "at": AT, "price": Decimal("1.50"), "lines": lines, "tags": {"a": "b"}})
    result = planned(
        spark, pipeline(Decoding(format=Format.AVRO, schema=json.dumps(AVRO))), good, good[:-3], good + b"x", None
    )
    row = result.output.where("id = 7").first()
    assert row is not None
    assert (row.id, row.customer, row.price, row.tags) == (7, None, Decimal("1.50"), {"a": "b"})
    assert row.lines[0].what == "x"
    assert result.output.selectExpr("unix_millis(at)").first()[0] == AT.timestamp() * 1000  # type: ignore[index]
    assert [value for value, _ in dead(result)] == [good[:-3], good + b"x", None]


def test_protobuf_becomes_columns_of_every_type(spark: SparkSession) -> None:
    from google.protobuf.message_factory import GetMessageClass

    message: Any = GetMessageClass(find_message(compile_proto(PROTO), "Order"))(
        id=7, big=2**63, state=1, lines=[{"what": "x", "count": 2}], tags={"a": "b"}, photo=b"\xff"
    )
    message.at.FromDatetime(AT)
    good = message.SerializeToString()
    one = pipeline(Decoding(format=Format.PROTOBUF, schema=PROTO, message="shop.Order"))
    result = planned(spark, one, good, b"\xff\xff\xff", b"")
    row = result.output.where("id = 7").first()
    assert row is not None
    assert (row.id, row.customer, row.big, row.state, row.tags) == (7, None, Decimal(2**63), "PAID", {"a": "b"})
    assert (row.lines[0]["count"], bytes(row.photo)) == (2, b"\xff")
    assert [value for value, _ in dead(result)] == [b"\xff\xff\xff"]


def test_rows_become_records_of_the_sinks_topic(spark: SparkSession) -> None:
    sink = Sink(kind=SinkKind.TOPIC, target="out", key="name")
    one = pipeline(
        Decoding(format=Format.JSON, schema="id bigint, name string"), sql="select id, name from orders", sink=sink
    )
    row = records(one, planned(spark, one, b'{"id": 1, "name": "a"}').output).first()
    assert row is not None
    assert (row.topic, bytes(row.key), json.loads(bytes(row.value)), row.headers) == (
        "out",
        b"a",
        {"id": 1, "name": "a"},
        [],
    )


def test_broken_json_is_a_dead_letter_and_its_neighbors_are_rows(spark: SparkSession) -> None:
    schema = "id bigint not null, price decimal(20,2), at timestamp, tags map<string, array<string>>"
    broken = [
        *(b'{"id":15}{"id":16}', b'{"id":15} x', b"", b'{"id":15,"price":1e400}', b'{"id":1,"tags":{"a":["\xff"]}}'),
        *(b'{"id":15,"at":1767323045123}', b'{"id":15,"price":1.239}', b'{"id":5.7}', b'{"id":"5"}', b"{}"),
    ]
    good = b'{"id":7,"price":12345678901234567.89,"at":"2026-01-02T03:04:05.123456Z","tags":{"a":["b"]}}'
    values = [one for bad in broken for one in (bad, good)]
    decoding = Decoding(format=Format.JSON, schema=schema)
    result = planned(spark, pipeline(decoding, sql="select id, price, at, tags from orders"), *values)
    rows = result.output.selectExpr("id", "price", "unix_micros(at)", "tags").collect()
    assert [tuple(row) for row in rows] == [
        (7, Decimal("12345678901234567.89"), 1_767_323_045_123_456, {"a": ["b"]})
    ] * len(broken)
    assert [value for value, _ in dead(result)] == broken


def test_topic_sink_keeps_microseconds(spark: SparkSession) -> None:
    decoding = Decoding(format=Format.JSON, schema="at timestamp, local timestamp_ntz")
    value = b'{"at":"2026-01-02T03:04:05.123456Z","local":"2026-01-02T03:04:05.000001"}'
    one = pipeline(decoding, sql="select at, local from orders", sink=Sink(kind=SinkKind.TOPIC, target="out"))
    rows = records(one, planned(spark, one, value).output).collect()
    assert [bytes(row.value) for row in rows] == [value]


def test_topic_sink_keeps_times_in_any_session_zone(spark: SparkSession) -> None:
    """New York was 4:56:02 behind UTC until 1883; a format of JSON has no seconds for that."""
    decoding = Decoding(format=Format.JSON, schema="at timestamp")
    value = b'{"at":"1883-11-18T12:03:57.500000Z"}'
    one = pipeline(decoding, sql="select at from orders", sink=Sink(kind=SinkKind.TOPIC, target="out"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = records(one, planned(spark, one, value).output).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [bytes(row.value) for row in rows] == [value]


def test_unknown_decode_option_is_refused(spark: SparkSession) -> None:
    one = pipeline(Decoding(format=Format.JSON, schema="id bigint", options={"mode": "FAILFAST"}))
    with pytest.raises(InvalidConfig, match="format json has no option 'mode'"):
        planned(spark, one)
