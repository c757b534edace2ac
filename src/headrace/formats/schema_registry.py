"""Schema registry client. Schemas that reference others are made self-contained, by inserting the referenced schemas:

Avro        a type of another subject is defined at its first use
JSON        another document becomes one of the definitions
Protobuf    not supported: a .proto with imports cannot be one text
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from headrace.model.errors import HeadraceError, InvalidConfig

_NAMED = ("record", "error", "enum", "fixed")
_DEFINITIONS = "definitions"


def whole_avro(text: str, others: Mapping[str, str]) -> str:
    """Returns a self-contained schema. `others` contains the schemas that it references, directly or indirectly, by
    type name.
    """
    known: dict[str, Any] = {}
    for name, other in others.items():
        known |= {name: _loaded(name, other)} | _types_in(_loaded(name, other), "")
    return json.dumps(_AvroWriter(known).written(_loaded("the schema", text), ""))


class _AvroWriter:
    """Writes each type at its first use, and its full name afterwards."""

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
    """Returns all types defined in a schema by full name, with their namespaces."""
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
    """Returns a self-contained schema. `others` contains the documents that it references, directly or indirectly, by
    the names in `$ref`.
    """
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
    """Returns the schema with adjusted `$ref` pointers; `root` is the new position of its document."""
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


# Schemas are written by people; a larger response is not a schema.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_S = 10.0
REFERENCES_MAX = 200  # each is a request, and schemas have a few
ACCEPT = "application/vnd.schemaregistry.v1+json"
# AVRO is the type of a schema without a type.
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"


class UnknownSchema(InvalidConfig):
    """The registry does not have the schema. Not retriable."""


class RegistryUnreachable(HeadraceError):
    """The registry did not respond, or its response is malformed. Neither record nor file is invalid, so the pipeline
    retries.
    """

    retriable = True


class Registered(NamedTuple):
    text: str
    kind: str
    references: tuple["Reference", ...] = ()


class Reference(NamedTuple):
    """A referenced schema: the name that references it, and its subject and version."""

    name: str
    subject: str
    version: int


class Registry:
    """Client of one registry. Caches schemas by id without expiry, because ids are immutable."""

    def __init__(self, url: str) -> None:
        """`url` may contain credentials: http://ann:secret@host."""
        parts = urlsplit(url)
        self._headers = {"Accept": ACCEPT}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        # Without credentials: errors contain the address, and are logged and stored in dead-letter records.
        self.url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._by_id: dict[int, Registered] = {}

    def schema(self, schema_id: int) -> Registered:
        if schema_id not in self._by_id:
            self._by_id[schema_id] = self._whole(self._ask(f"/schemas/ids/{schema_id}", f"schema {schema_id}"))
        return self._by_id[schema_id]

    def newest(self, subject: str, kind: str) -> str:
        """Returns the newest schema of a subject. Raises InvalidConfig if it has another type."""
        found = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")
        if found.kind != kind:
            raise InvalidConfig(f"the registry {self.url} has {found.kind} for {subject}, not {kind}")
        return self._whole(found).text

    def _whole(self, schema: Registered) -> Registered:
        """Returns the schema with all directly and indirectly referenced schemas inserted."""
        if not schema.references:
            return schema
        if schema.kind not in (AVRO, JSON):
            raise InvalidConfig(
                f"a {schema.kind} schema of the registry {self.url} imports {schema.references[0].name} of another "
                "subject, which only Avro and JSON schemas can; give the schema as `schema_file`"
            )
        others: dict[str, str] = {}
        waiting = list(schema.references)
        while waiting:
            one = waiting.pop()
            if one.name in others:
                continue
            if len(others) == REFERENCES_MAX:
                raise InvalidConfig(f"a schema of the registry {self.url} refers to more than {REFERENCES_MAX} others")
            path = f"/subjects/{quote(one.subject, safe='')}/versions/{one.version}"
            found = self._ask(path, f"version {one.version} of subject {one.subject}, which a schema refers to")
            others[one.name] = found.text
            waiting += found.references
        make_whole = whole_avro if schema.kind == AVRO else whole_json
        return schema._replace(text=make_whole(schema.text, others), references=())

    def _ask(self, path: str, what: str) -> Registered:
        request = Request(self.url.rstrip("/") + path, headers=self._headers)
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                said = json.loads(answer.read(ANSWER_BYTES_MAX))
                references = tuple(
                    Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
                    for one in said.get("references") or ()
                )
                return Registered(str(said["schema"]), str(said.get("schemaType", AVRO)), references)
        except HTTPError as error:
            if error.code == 404:
                raise UnknownSchema(f"the registry {self.url} has no {what}") from error
            raise RegistryUnreachable(
                f"the registry {self.url} returned HTTP status {error.code} for {what}"
            ) from error
        except (OSError, HTTPException) as error:
            raise RegistryUnreachable(f"the registry {self.url} cannot be reached: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryUnreachable(f"the registry {self.url} gave no schema for {what}") from error


@cache
def registry_at(url: str) -> Registry:
    """Returns the client of a registry, one per process: Spark's workers outlive their tasks and share its cache."""
    return Registry(url)
