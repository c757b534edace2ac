"""A JSON Schema as Spark's columns."""

import json
from typing import Any

import pytest

from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline.json_schema import columns


def of(schema: Any, **more: Any) -> str:
    return columns(json.dumps({"type": "object", "properties": {"a": schema}, **more}))


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, "double"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "boolean"),
        ({"type": ["string", "integer"]}, "string"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
        ({"enum": ["x", "y"]}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string, bigint>"),
        ({"type": "object", "properties": {"b c": {"type": "integer"}}}, "struct<`b c`: bigint>"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "array<array<string>>"),
        ({"type": "object", "properties": {"b`c": {"type": "integer"}}}, "struct<`b``c`: bigint>"),
        ({"type": "array"}, "array<string>"),
        ({"$ref": "#/definitions/d"}, "double"),
    ],
)
def test_every_type_has_a_column(schema: Any, ddl: str) -> None:
    assert of(schema, definitions={"d": {"type": "number"}}) == f"`a` {ddl}"


def test_the_whole_may_be_a_reference() -> None:
    tree = {"$ref": "#/$defs/Order", "$defs": {"Order": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    assert columns(json.dumps(tree)) == "`a` bigint"


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
