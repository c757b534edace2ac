"""A JSON Schema as columns."""

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.formats.decoding_rules import STRICT
from headrace.formats.json_schema import columns
from headrace.formats.text_columns import JSON_TEXT
from headrace.formats.text_decoder import text_decoder
from headrace.model.errors import InvalidConfig


def listed(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


def of(schema: Any, **more: Any) -> pa.DataType:
    return columns(json.dumps({"type": "object", "properties": {"a": schema}, **more})).field("a").type


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string"}, pa.string()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, pa.float64()),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, pa.bool_()),
        ({"type": ["string", "integer"]}, JSON_TEXT),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, JSON_TEXT),
        ({"enum": ["x", "y"]}, JSON_TEXT),
        ({}, JSON_TEXT),
        (True, JSON_TEXT),
        ({"type": "object"}, JSON_TEXT),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object", "properties": {"b c": {"type": "integer"}}}, pa.struct([("b c", pa.int64())])),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, listed(listed(pa.string()))),
        ({"type": "object", "properties": {"b`c": {"type": "integer"}}}, pa.struct([("b`c", pa.int64())])),
        ({"type": "array"}, listed(JSON_TEXT)),
        ({"$ref": "#/definitions/d"}, pa.float64()),
    ],
)
def test_every_type_has_a_column(schema: Any, type_: pa.DataType) -> None:
    assert of(schema, definitions={"d": {"type": "number"}}) == type_


def test_the_whole_may_be_a_reference() -> None:
    tree = {"$ref": "#/$defs/Order", "$defs": {"Order": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    assert columns(json.dumps(tree)) == pa.schema([("a", pa.int64())])


def test_value_without_a_single_type_becomes_its_json_text() -> None:
    fields = list(columns('{"properties": {"a": {}, "b": {"type": "array"}}}'))
    values = [b'{"a": {"x": [1.10, "\\u00e9"]}, "b": ["s", 2, null]}', b'{"a": "s"}', b'{"a": 12345678901234567890123}']
    decoded = text_decoder("json", fields, STRICT).decode(values)
    assert decoded.rows.field("a").to_pylist() == ['{"x":[1.10,"é"]}', "s", "12345678901234567890123"]
    assert decoded.rows.field("b").to_pylist() == [["s", "2", None], None, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is JSON, and this is not"),
        ("[]", "an object with properties"),
        ('{"type": "string"}', "an object with properties"),
        ('{"properties": {"a": {"$ref": "#/nowhere"}}}', "is not in the JSON Schema"),
        ('{"properties": {"a": {"$ref": "http://elsewhere/x"}}}', "is not in the JSON Schema"),
        ('{"properties": {"a": {"$ref": "#/d"}}, "d": {"type": "array", "items": {"$ref": "#/d"}}}', "contains itself"),
        ('{"properties": {"a": {"$ref": "#/d"}}, "d": {"$ref": "#/d"}}', "contains itself"),
    ],
)
def test_what_has_no_columns_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        columns(text)
