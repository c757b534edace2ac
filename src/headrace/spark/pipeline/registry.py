"""A schema registry with Confluent's REST interface, asked for a schema by id or for the newest of a subject."""

import json
from dataclasses import dataclass, field
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from headrace.model.errors import InvalidConfig

# An answer is a schema: text that people write. A registry that sends more than this is none.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_S = 10.0
ACCEPT = "application/vnd.schemaregistry.v1+json"


class UnknownSchema(InvalidConfig):
    """The registry has never heard of it: asking again will not help."""


class RegistryUnreachable(InvalidConfig):
    """Nobody answered, or not sensibly: no record is to blame, so the pipeline waits and tries again."""

    retriable = True


@dataclass
class Registry:
    """Remembers schemas by id for ever: an id never changes its meaning."""

    url: str
    _by_id: dict[int, str] = field(default_factory=dict)

    def schema(self, schema_id: int) -> str:
        if schema_id not in self._by_id:
            self._by_id[schema_id] = self._ask(f"/schemas/ids/{schema_id}", f"schema {schema_id}")
        return self._by_id[schema_id]

    def newest(self, subject: str) -> str:
        return self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")

    def _ask(self, path: str, what: str) -> str:
        request = Request(self.url.rstrip("/") + path, headers={"Accept": ACCEPT})
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                schema = json.loads(answer.read(ANSWER_BYTES_MAX))["schema"]
        except HTTPError as error:
            if error.code == 404:
                raise UnknownSchema(f"the registry {self.url} has no {what}") from error
            raise RegistryUnreachable(f"the registry {self.url} answered {error.code} for {what}") from error
        except (URLError, TimeoutError, OSError) as error:
            raise RegistryUnreachable(f"the registry {self.url} cannot be reached: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RegistryUnreachable(f"the registry {self.url} gave no schema for {what}") from error
        return str(schema)
