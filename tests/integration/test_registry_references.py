"""Schemas that refer to others in a registry, asked for over HTTP as a pipeline does, and made whole."""

import json
from collections.abc import Iterator
from io import BytesIO

import fastavro
import pyarrow as pa
import pytest

from headrace.formats import json_schema
from headrace.formats.avro_schema import columns
from headrace.formats.schema_registry import AVRO, JSON, PROTOBUF, REFERENCES_MAX, Registry, UnknownSchema
from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline import decode_avro
from tests.spark.registry_server import RegistryServer

MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop.types",
    "fields": [
        {"name": "cents", "type": "long"},
        {"name": "currency", "type": {"type": "enum", "name": "Currency", "symbols": ["EUR", "CHF"]}},
    ],
}
LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "count", "type": "int"}, {"name": "price", "type": "shop.types.Money"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "total", "type": ["null", "shop.types.Money"]},
        {"name": "currency", "type": "shop.types.Currency"},
    ],
}
ROW = {
    "id": 1,
    "lines": [{"count": 2, "price": {"cents": 5, "currency": "CHF"}}],
    "total": {"cents": 10, "currency": "EUR"},
    "currency": "CHF",
}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer().serving() as running:
        yield running


def test_avro_schema_with_references_is_whole(server: RegistryServer) -> None:
    server.register("money", json.dumps({**MONEY, "fields": MONEY["fields"][:1]}))
    server.register("money", json.dumps(MONEY))
    server.register("line", json.dumps(LINE), references={"shop.types.Money": ("money", 2)})
    references = {"Line": ("line", 1), "shop.types.Money": ("money", 2)}
    known = server.register("orders-value", json.dumps(ORDER), references=references)
    registry = Registry(server.url)
    for text in (registry.schema(known).text, registry.newest("orders-value", AVRO)):
        parsed = fastavro.parse_schema(json.loads(text))
        stream = BytesIO()
        fastavro.schemaless_writer(stream, parsed, ROW)
        stream.seek(0)
        assert fastavro.schemaless_reader(stream, parsed) == ROW


def test_referred_avro_type_becomes_columns(server: RegistryServer) -> None:
    server.register("money", json.dumps(MONEY))
    order = {**ORDER, "fields": [ORDER["fields"][0], ORDER["fields"][2]]}
    server.register("orders-value", json.dumps(order), references={"shop.types.Money": ("money", 1)})
    text = Registry(server.url).newest("orders-value", AVRO)
    money = pa.struct([("cents", pa.int64()), ("currency", pa.string())])
    assert columns(decode_avro.parsed(text)).type == pa.struct([("id", pa.int64()), ("total", money)])


def test_json_schema_with_references_becomes_columns(server: RegistryServer) -> None:
    money = {"definitions": {"Cents": {"type": "integer"}}, "properties": {"cents": {"$ref": "#/definitions/Cents"}}}
    line = {"type": "object", "properties": {"price": {"$ref": "http://shop/money.json"}}}
    order = {
        "properties": {
            "line": {"$ref": "line.json"},
            "cents": {"$ref": "http://shop/money.json#/definitions/Cents"},
            "own": {"$ref": "#/definitions/Own"},
        },
        "definitions": {"Own": {"type": "boolean"}},
    }
    server.register("money", json.dumps({"type": "object", **money}), JSON)
    server.register("line", json.dumps(line), JSON, {"http://shop/money.json": ("money", 1)})
    references = {"line.json": ("line", 1), "http://shop/money.json": ("money", 1)}
    server.register("orders-value", json.dumps(order), JSON, references)
    text = Registry(server.url).newest("orders-value", JSON)
    price = pa.struct([("cents", pa.int64())])
    line_type = pa.struct([("price", price)])
    assert json_schema.columns(text) == pa.schema([("line", line_type), ("cents", pa.int64()), ("own", pa.bool_())])


def test_reference_that_registry_lacks_is_named(server: RegistryServer) -> None:
    known = server.register("orders-value", json.dumps(ORDER), references={"Line": ("line", 3)})
    with pytest.raises(UnknownSchema, match="no version 3 of subject line, which a schema refers to"):
        Registry(server.url).schema(known)


def test_schemas_that_refer_to_each_other_come_to_an_end(server: RegistryServer) -> None:
    server.register("money", json.dumps(MONEY), references={"Line": ("line", 1)})
    server.register("line", json.dumps(LINE), references={"shop.types.Money": ("money", 1)})
    assert "Money" in Registry(server.url).newest("line", AVRO)


def test_references_without_end_are_refused(server: RegistryServer) -> None:
    for number in range(REFERENCES_MAX + 2):
        server.register(f"s{number}", '"int"', references={f"n{number + 1}": (f"s{number + 1}", 1)})
    with pytest.raises(InvalidConfig, match=f"more than {REFERENCES_MAX} others"):
        Registry(server.url).newest("s0", AVRO)


def test_protobuf_import_is_refused_with_remedy(server: RegistryServer) -> None:
    known = server.register("orders-value", 'import "m.proto";', PROTOBUF, {"m.proto": ("money", 1)})
    with pytest.raises(InvalidConfig, match=r"imports m\.proto of another subject.*schema_file"):
        Registry(server.url).schema(known)
