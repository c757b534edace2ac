"""A schema registry with Confluent's REST interface, asked for a schema by id or for the newest of a subject."""

import json
from base64 import b64encode
from functools import cache
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.pipeline.registry_references import whole_avro, whole_json

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
