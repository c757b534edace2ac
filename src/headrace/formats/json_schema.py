"""Converts a JSON Schema, as in schema registries, to columns. Pure; performs no I/O.

Types without a single equivalent in Spark (a union, an object without properties, any type) become JSON text.
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.formats.text_columns import JSON_TEXT
from headrace.formats.timestamps import TIMESTAMP
from headrace.model.errors import InvalidConfig

_PLAIN = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_TIMES = {"date-time": TIMESTAMP, "date": pa.date32()}


def columns(text: str) -> pa.Schema:
    """Returns the properties of an object as columns."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"a JSON Schema is JSON, and this is not: {error}") from error
    root = _resolved(tree, tree, ()) if isinstance(tree, dict) else {}
    if not isinstance(root.get("properties"), dict) or not root["properties"]:
        raise InvalidConfig("the JSON Schema must be one of an object with properties: they become columns")
    return pa.schema([pa.field(name, _type(one, tree, ())) for name, one in root["properties"].items()])


def _type(schema: Any, tree: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if not isinstance(schema, dict):
        return JSON_TEXT
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _type(_resolved(schema, tree, inside), tree, (*inside, reference))
    schema = _without_null(schema)
    match schema.get("type"):
        case "string":
            return _TIMES.get(schema.get("format", ""), pa.string())
        case "array":
            return pa.list_(pa.field("element", _type(schema.get("items"), tree, inside)))
        case "object":
            return _object_type(schema, tree, inside)
        case str(name):
            return _PLAIN.get(name, JSON_TEXT)
        case _:
            branches = schema.get("oneOf")
            return _type(branches[0], tree, inside) if branches and len(branches) == 1 else JSON_TEXT


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes `null` beside one other type, because every column is nullable. All unions become oneOf."""
    types = schema.get("type")
    if isinstance(types, list):
        left = [one for one in types if one != "null"]
        return {**schema, "type": left[0] if len(left) == 1 else None}
    branches = schema.get("oneOf") or schema.get("anyOf") or []
    return {**schema, "oneOf": [one for one in branches if one != {"type": "null"}]}


def _object_type(schema: Mapping[str, Any], tree: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    properties = schema.get("properties")
    if properties:
        return pa.struct([pa.field(name, _type(one, tree, inside)) for name, one in properties.items()])
    values = schema.get("additionalProperties")
    return pa.map_(pa.string(), _type(values, tree, inside)) if isinstance(values, dict) else JSON_TEXT


def _resolved(schema: dict[str, Any], tree: Mapping[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    """Returns the target of a `$ref` within the document."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    if reference in inside:
        raise InvalidConfig(f"{reference} of the JSON Schema contains itself; Spark has no recursive types")
    found: Any = tree
    head, *steps = str(reference).split("/")
    for step in steps if head == "#" else [""]:
        found = found.get(step) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{reference} is not in the JSON Schema; other documents cannot be referred to")
    return _resolved(found, tree, (*inside, reference))
