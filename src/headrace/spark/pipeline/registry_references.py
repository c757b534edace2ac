"""Schemas that refer to others in the registry, made whole: what they name is written into them. Pure.

Avro        a type that another subject defines is defined where it is used first
JSON        another document becomes one of the definitions
Protobuf    is left out: a .proto that imports another is no single text
"""

import json
from collections.abc import Mapping
from typing import Any

from headrace.model.errors import InvalidConfig

_NAMED = ("record", "error", "enum", "fixed")
_DEFINITIONS = "definitions"


def whole_avro(text: str, others: Mapping[str, str]) -> str:
    """`others`: the schemas that it refers to, and that these refer to, by the names of their types."""
    known: dict[str, Any] = {}
    for name, other in others.items():
        known |= {name: _loaded(name, other)} | _types_in(_loaded(name, other), "")
    return json.dumps(_AvroWriter(known).written(_loaded("the schema", text), ""))


class _AvroWriter:
    """Writes each type once, where it is first met; after that its full name."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known, self._written = known, set[str]()

    def written(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, list):
            return [self.written(one, namespace) for one in schema]
        if isinstance(schema, str):
            return self._of_name(schema, namespace)
        if not isinstance(schema, dict):
            return schema
        if schema.get("type") in _NAMED:
            return self._definition(schema, namespace)
        inner = {key: self.written(schema[key], namespace) for key in ("type", "items", "values") if key in schema}
        return {**schema, **inner}

    def _of_name(self, name: str, namespace: str) -> Any:
        full = _full(name, namespace)
        if full in self._written:
            return full
        known = next((one for one in (full, name) if one in self._known), None)
        return self._definition(self._known[known], "") if known is not None else name

    def _definition(self, schema: Any, namespace: str) -> Any:
        if not isinstance(schema, dict) or schema.get("type") not in _NAMED or "name" not in schema:
            return self.written(schema, namespace)
        full = _full_of(schema, namespace)
        if full in self._written:
            return full
        self._written.add(full)
        own, _, name = full.rpartition(".")
        fields = [
            {**one, "type": self.written(one["type"], own)} if isinstance(one, dict) and "type" in one else one
            for one in schema.get("fields", ())
        ]
        return {**schema, "name": name, "namespace": own, **({"fields": fields} if "fields" in schema else {})}


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _full_of(schema: Mapping[str, Any], namespace: str) -> str:
    return _full(str(schema["name"]), str(schema.get("namespace", namespace)))


def _types_in(schema: Any, namespace: str) -> dict[str, Any]:
    """Every type that is defined in a schema, by its full name and with its namespace."""
    if isinstance(schema, list):
        return {name: one for branch in schema for name, one in _types_in(branch, namespace).items()}
    if not isinstance(schema, dict):
        return {}
    found: dict[str, Any] = {}
    if schema.get("type") in _NAMED and "name" in schema:
        full = _full_of(schema, namespace)
        namespace = full.rpartition(".")[0]
        found[full] = {**schema, "namespace": namespace}
    inside = [one.get("type") for one in schema.get("fields", ()) if isinstance(one, dict)]
    inside += [schema[key] for key in ("type", "items", "values") if isinstance(schema.get(key), (dict, list))]
    for one in inside:
        found |= _types_in(one, namespace)
    return found


def whole_json(text: str, others: Mapping[str, str]) -> str:
    """`others`: the documents that it refers to, and that these refer to, by the names in their `$ref`."""
    tree = _loaded("the schema", text)
    if not isinstance(tree, dict):
        raise InvalidConfig("a JSON Schema that refers to others is an object")
    places = {name: f"#/{_DEFINITIONS}/headrace-{number}" for number, name in enumerate(sorted(others))}
    added = {
        places[name].rpartition("/")[2]: _moved(_loaded(name, other), places, places[name])
        for name, other in others.items()
    }
    whole = _moved(tree, places, "#")
    return json.dumps({**whole, _DEFINITIONS: {**whole.get(_DEFINITIONS, {}), **added}})


def _moved(schema: Any, places: Mapping[str, str], root: str) -> Any:
    """With every `$ref` to where it points now; `root` is where the document itself is."""
    if isinstance(schema, list):
        return [_moved(one, places, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, places, root) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        document, _, pointer = reference.partition("#")
        moved["$ref"] = (places.get(document, document + "#") if document else root) + pointer
    return moved


def _loaded(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{name} of the registry is not JSON: {error}") from error
