"""A JSON Schema, as registries keep it, as Spark's columns. Pure.

What has no single type that Spark knows (a union, an object without properties, anything at all) becomes its JSON text.
"""

import json
from collections.abc import Mapping
from typing import Any

from headrace.model.errors import InvalidConfig

_PLAIN = {"integer": "bigint", "number": "double", "boolean": "boolean"}
_TIMES = {"date-time": "timestamp", "date": "date"}
_JSON_TEXT = "string"


def columns(text: str) -> str:
    """The properties of an object as DDL."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"a JSON Schema is JSON, and this is not: {error}") from error
    root = _resolved(tree, tree, ()) if isinstance(tree, dict) else {}
    if not isinstance(root.get("properties"), dict) or not root["properties"]:
        raise InvalidConfig("the JSON Schema must be one of an object with properties: they become columns")
    return ", ".join(f"{_quoted(name)} {_type(one, tree, ())}" for name, one in root["properties"].items())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _type(schema: Any, tree: Mapping[str, Any], inside: tuple[str, ...]) -> str:
    if not isinstance(schema, dict):
        return _JSON_TEXT
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _type(_resolved(schema, tree, inside), tree, (*inside, reference))
    schema = _without_null(schema)
    match schema.get("type"):
        case "string":
            return _TIMES.get(schema.get("format", ""), "string")
        case "array":
            return f"array<{_type(schema.get('items'), tree, inside)}>"
        case "object":
            return _object_type(schema, tree, inside)
        case str(name):
            return _PLAIN.get(name, _JSON_TEXT)
        case _:
            branches = schema.get("oneOf")
            return _type(branches[0], tree, inside) if branches and len(branches) == 1 else _JSON_TEXT


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Every column may be null, so `null` beside one other type says nothing. Unions are all called oneOf here."""
    types = schema.get("type")
    if isinstance(types, list):
        left = [one for one in types if one != "null"]
        return {**schema, "type": left[0] if len(left) == 1 else None}
    branches = schema.get("oneOf") or schema.get("anyOf") or []
    return {**schema, "oneOf": [one for one in branches if one != {"type": "null"}]}


def _object_type(schema: Mapping[str, Any], tree: Mapping[str, Any], inside: tuple[str, ...]) -> str:
    properties = schema.get("properties")
    if properties:
        fields = (f"{_quoted(name)}: {_type(one, tree, inside)}" for name, one in properties.items())
        return f"struct<{', '.join(fields)}>"
    values = schema.get("additionalProperties")
    return f"map<string, {_type(values, tree, inside)}>" if isinstance(values, dict) else _JSON_TEXT


def _resolved(schema: dict[str, Any], tree: Mapping[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    """What a `$ref` within the document points to."""
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
