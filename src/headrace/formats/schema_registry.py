"""The schema registry client, with references between schemas.

Schemas that refer to others in the registry, made whole: what they name is written into them. Pure.

Avro        a type that another subject defines is defined where it is used first
JSON        another document becomes one of the definitions
Protobuf    is left out: a .proto that imports another is no single text
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


# An answer is a schema: text that people write. A registry that sends more than this is none.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_S = 10.0
REFERENCES_MAX = 200  # each is a request, and a schema that people write has a few
ACCEPT = "application/vnd.schemaregistry.v1+json"
# What a registry calls a schema that it does not say the type of.
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"


class UnknownSchema(InvalidConfig):
    """The registry has never heard of it: asking again will not help."""


class RegistryUnreachable(HeadraceError):
    """Nobody answered, or not sensibly: neither a record nor the file is to blame, so the pipeline tries again."""

    retriable = True


class Registered(NamedTuple):
    text: str
    kind: str
    references: tuple["Reference", ...] = ()


class Reference(NamedTuple):
    """Another schema that one refers to: by which name, and where the registry has it."""

    name: str
    subject: str
    version: int


class Registry:
    """Remembers schemas by id for ever: an id never changes its meaning."""

    def __init__(self, url: str) -> None:
        """`url` may have a user and a password in it: http://ann:secret@host."""
        parts = urlsplit(url)
        self._headers = {"Accept": ACCEPT}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        # Without them: errors tell the address, and end in logs and dead letters.
        self.url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._by_id: dict[int, Registered] = {}

    def schema(self, schema_id: int) -> Registered:
        if schema_id not in self._by_id:
            self._by_id[schema_id] = self._whole(self._ask(f"/schemas/ids/{schema_id}", f"schema {schema_id}"))
        return self._by_id[schema_id]

    def newest(self, subject: str, kind: str) -> str:
        """The text of the schema that the subject has now, which must be of this kind."""
        found = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")
        if found.kind != kind:
            raise InvalidConfig(f"the registry {self.url} has {found.kind} for {subject}, not {kind}")
        return self._whole(found).text

    def _whole(self, schema: Registered) -> Registered:
        """With what it refers to, and what that refers to, written into it."""
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
            raise RegistryUnreachable(f"the registry {self.url} answered {error.code} for {what}") from error
        except (OSError, HTTPException) as error:
            raise RegistryUnreachable(f"the registry {self.url} cannot be reached: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryUnreachable(f"the registry {self.url} gave no schema for {what}") from error


@cache
def registry_at(url: str) -> Registry:
    """One for the whole process: Spark's workers outlive their tasks, and what one has learned the next may use."""
    return Registry(url)
