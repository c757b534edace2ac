"""Records that name their schema in a registry: decoded by it, and put aside when they name another or none."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession

from headrace.formats.schema_registry import AVRO, Registry, RegistryUnreachable
from headrace.model.errors import InvalidConfig
from headrace.pipeline.dead_letters import DEAD_ERROR
from headrace.pipeline.definition import Decoding, Format
from headrace.process.restart_policy import DONE, FAILED, REFUSED, RestartPolicy
from headrace.process.sockets import reserve_port
from headrace.spark.pipeline import worker
from headrace.spark.pipeline.decode_protobuf import compile_proto, find_message
from tests.spark.kit import SparkKit
from tests.spark.registry_server import RegistryServer, framed
from tests.spark.test_decoding import dead, pipeline, planned

JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "lines": {"type": "array", "items": {"$ref": "#/definitions/Line"}},
        },
        "definitions": {"Line": {"type": "object", "properties": {"count": {"type": "integer"}}}},
    }
)
OLD_AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW_AVRO = {**OLD_AVRO, "fields": [*OLD_AVRO["fields"], {"name": "name", "type": "string", "default": "nobody"}]}
PROTO = """
syntax = "proto3";
package shop;
message Refund { int64 id = 1; }
message Order { int64 id = 1; message Line { int32 count = 1; } }
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryServer]:
    with RegistryServer().serving() as server:
        yield server


def decoding(registry: RegistryServer, format_: Format, subject: str, **fields: Any) -> Decoding:
    return Decoding(format=format_, registry=registry.url, options={"subject": subject}, **fields)


def errors(letters: list[tuple[bytes, dict[str, str]]]) -> dict[bytes, str]:
    return {value: headers[DEAD_ERROR] for value, headers in letters}


def avro(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_json_gets_its_columns_from_the_registry(spark: SparkSession, registry: RegistryServer) -> None:
    known = registry.register("j-value", JSON_SCHEMA, "JSON")
    other = registry.register("other", json.dumps(OLD_AVRO))
    good = framed(known, b'{"id": 1, "name": "a", "lines": [{"count": 2}]}')
    bare, shifted = b'{"id": 2}', b"\1" + framed(known, b'{"id": 3}')[1:]
    stranger, avro_id, short = framed(99_999, b'{"id": 4}'), framed(other, b'{"id": 5}'), b"\0\0"
    broken = framed(known, b"{")
    one = pipeline(decoding(registry, Format.JSON, "j-value"))
    result = planned(spark, one, good, bare, shifted, stranger, avro_id, short, broken, None)
    rows = [(row.id, row.name, row.lines and row.lines[0]["count"]) for row in result.output.collect()]
    assert rows == [(1, "a", 2)]
    said = errors(dead(result))
    assert set(said) == {bare, shifted, stranger, avro_id, short, broken, None}
    assert all("does not begin with a schema id" in said[value] for value in (bare, shifted, short))
    assert said[stranger] == f"the registry {registry.url} has no schema 99999"
    assert said[avro_id] == f"schema {other} of the registry is AVRO, not JSON"
    assert "not JSON" in said[broken]


def test_json_with_columns_of_ones_own_is_still_checked(spark: SparkSession, registry: RegistryServer) -> None:
    known = registry.register("own-value", JSON_SCHEMA, "JSON")
    one = pipeline(decoding(registry, Format.JSON, "own-value", schema="id bigint"))
    result = planned(spark, one, framed(known, b'{"id": 1, "name": "a"}'), b'{"id": 2}')
    assert [row.id for row in result.output.collect()] == [1]
    assert [value for value, _ in dead(result)] == [b'{"id": 2}']


def test_avro_is_read_with_its_writers_schema(spark: SparkSession, registry: RegistryServer) -> None:
    old, new = (registry.register("a-value", json.dumps(schema)) for schema in (OLD_AVRO, NEW_AVRO))
    json_id = registry.register("other", JSON_SCHEMA, "JSON")
    unreadable = registry.register("other", json.dumps({"type": "record", "name": "R", "fields": [{"name": "x"}]}))
    values = framed(old, avro(OLD_AVRO, {"id": 1})), framed(new, avro(NEW_AVRO, {"id": 2, "name": "b"}))
    poison = b"\1" + values[0][1:], framed(99_999, b"\2"), framed(json_id, b"\2"), framed(unreadable, b"\2")
    result = planned(spark, pipeline(decoding(registry, Format.AVRO, "a-value")), *values, *poison)
    assert [(row.id, row.name) for row in result.output.collect()] == [(1, "nobody"), (2, "b")]
    said = errors(dead(result))
    assert set(said) == set(poison)
    assert "does not begin with a schema id" in said[poison[0]]
    assert "has no schema 99999" in said[poison[1]]
    assert "is JSON, not AVRO" in said[poison[2]]
    assert f"schema {unreadable} of the registry cannot be used" in said[poison[3]]


def test_protobuf_of_another_message_is_not_taken_for_ours(spark: SparkSession, registry: RegistryServer) -> None:
    """Their bytes are the same; only the indexes behind the id tell an order from a refund."""
    known = registry.register("p-value", PROTO, "PROTOBUF")
    payload = GetMessageClass(find_message(compile_proto(PROTO), "Order"))(id=7).SerializeToString()
    order, refund = framed(known, b"\2\2" + payload), framed(known, b"\0" + payload)
    line, beyond = framed(known, b"\4\2\0" + payload), framed(known, b"\2\x10" + payload)
    cut, stranger = framed(known, b"\6\2"), framed(99_999, b"\2\2" + payload)
    bare = payload
    one = pipeline(decoding(registry, Format.PROTOBUF, "p-value", message="Order"))
    result = planned(spark, one, order, refund, line, beyond, cut, stranger, bare)
    assert [row.id for row in result.output.collect()] == [7]
    said = errors(dead(result))
    assert set(said) == {refund, line, beyond, cut, stranger, bare}
    assert said[refund] == "a message shop.Refund, not shop.Order"
    assert said[line] == "a message shop.Order.Line, not shop.Order"
    assert "no message at [8]" in said[beyond]
    assert "truncated" in said[cut]
    assert "has no schema 99999" in said[stranger]
    first = planned(spark, pipeline(decoding(registry, Format.PROTOBUF, "p-value")), refund)
    assert [row.id for row in first.output.collect()] == [7], "without a name it is the first message"


def test_the_registry_is_asked_once_for_what_it_knows(spark: SparkSession, registry: RegistryServer) -> None:
    known = registry.register("once-value", json.dumps(OLD_AVRO))
    values = [framed(known, avro(OLD_AVRO, {"id": number})) for number in range(200)]
    one = pipeline(decoding(registry, Format.AVRO, "once-value"))
    result = planned(spark, one, *values, framed(88_888, b""), framed(88_888, b""))
    assert len(result.output.collect()) == 200
    # By each of the two workers, at most; what it does not know by each task, since it may know it later.
    assert registry.asked[f"/schemas/ids/{known}"] <= 2
    assert registry.asked["/schemas/ids/88888"] <= 2


def test_a_subject_that_is_not_there_or_not_said_is_a_mistake(spark: SparkSession, registry: RegistryServer) -> None:
    registry.register("kind-value", JSON_SCHEMA, "JSON")
    for subject, said in (("nothing", "has no subject nothing"), ("kind-value", "has JSON for kind-value, not AVRO")):
        with pytest.raises(InvalidConfig, match=said):
            planned(spark, pipeline(decoding(registry, Format.AVRO, subject)))
    with pytest.raises(InvalidConfig, match="has no subject orders-value"):
        planned(spark, pipeline(Decoding(format=Format.AVRO, registry=registry.url)))


def test_a_registry_may_want_a_password_which_is_told_to_nobody_else() -> None:
    server = RegistryServer()
    server.register("a-value", json.dumps(OLD_AVRO))
    server.password = "Basic YW5uOnNAYy9y"  # ann:s@c/r
    with server.serving():
        stranger, ann = Registry(server.url), Registry(server.url.replace("://", "://ann:s%40c%2Fr@"))
        assert json.loads(ann.newest("a-value", AVRO)) == OLD_AVRO
        with pytest.raises(RegistryUnreachable, match="returned HTTP status 401"):
            stranger.newest("a-value", AVRO)
        with pytest.raises(InvalidConfig, match=f"^the registry {server.url} has no subject b-value$"):
            ann.newest("b-value", AVRO)


FILE = """\
pipeline: {name}
sources: {{orders: {{topic: "{topic}", format: avro, registry: "{url}"}}}}
sql: select id from orders
sink: {{topic: "{topic}.out"}}
dead_letters: {topic}.dead
trigger: available-now
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that is not there yet, and that nobody else gets meanwhile."""
    with reserve_port(0) as reservation:
        yield reservation.getsockname()[1]


def test_a_registry_that_is_away_is_waited_for(kit: SparkKit, tmp_path: Path, port: int, own_signals: None) -> None:
    topic = kit.topic()
    out = kit.topic(name=f"{topic}.out")
    kit.topic(name=f"{topic}.dead")
    file = tmp_path / "p.yaml"
    file.write_text(FILE.format(name=f"p-{uuid4().hex[:8]}", topic=topic, url=f"http://127.0.0.1:{port}"))
    command = [str(file), "--bootstrap", kit.bootstrap, "--state", str(tmp_path), "--master", "local[2]"]
    code = worker.main(command)
    assert code == FAILED
    assert RestartPolicy().after(code, 1) is not None, "its supervisor starts it again"
    server = RegistryServer(port)
    with server.serving():
        assert worker.main(command) == REFUSED, "it is there, and knows no such subject"
        known = server.register(f"{topic}-value", json.dumps(OLD_AVRO))
        kit.produce(topic, [framed(known, avro(OLD_AVRO, {"id": 5})), b"no id"])
        assert worker.main(command) == DONE
    assert kit.values(out, kafka__isolation__level="read_committed") == [b'{"id":5}']
    assert kit.values(f"{topic}.dead", kafka__isolation__level="read_committed") == [b"no id"]


def test_a_registry_that_goes_away_makes_no_dead_letters(spark: SparkSession) -> None:
    server = RegistryServer()
    known = server.register("gone-value", json.dumps(OLD_AVRO))
    with server.serving():
        result = planned(
            spark, pipeline(decoding(server, Format.AVRO, "gone-value")), framed(known, avro(OLD_AVRO, {"id": 1}))
        )
    for frame in (result.output, result.dead):
        assert frame is not None
        with pytest.raises(Exception, match="cannot be reached"):
            frame.collect()
    with pytest.raises(RegistryUnreachable):
        planned(spark, pipeline(decoding(server, Format.AVRO, "gone-value")))
