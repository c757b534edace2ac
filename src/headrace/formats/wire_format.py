"""Confluent's wire format: values with the id of their writer's schema in a registry.

    0x00 | schema id, 4 bytes | payload                       Avro, JSON
    0x00 | schema id, 4 bytes | message indexes | payload     Protobuf

A value with another beginning, or with an id that the registry does not have, does not decode. A registry that does
not respond is an error of the registry, not of the record.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.formats.errors import DoesNotDecode
from headrace.formats.schema_registry import UnknownSchema, registry_at
from headrace.model.errors import InvalidConfig

HEAD_BYTES = 5

Meaning = TypeVar("Meaning")


def schema_id_of(value: bytes) -> int:
    if len(value) < HEAD_BYTES or value[0] != 0:
        raise DoesNotDecode("the value does not begin with a schema id (a zero and four bytes)")
    return int.from_bytes(value[1:HEAD_BYTES], "big")


def split_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Returns the path of the message type in its .proto, from the outermost inward, and the payload. The path is
    encoded as a count and as many zigzag numbers; a single zero stands for the first message.
    """
    count, at = _zigzag(payload, 0)
    if count < 0:
        raise DoesNotDecode(f"behind the schema id stand {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        indexes.append(index)
    return tuple(indexes) or (0,), payload[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DoesNotDecode("the message indexes after the schema id are truncated")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


class Writers(Generic[Meaning]):
    """Parsed schemas by id. Each id is looked up once, including unknown ones."""

    def __init__(self, url: str, kind: str, understand: Callable[[str], Meaning]) -> None:
        self._registry, self._kind, self._understand = registry_at(url), kind, understand
        self._known: dict[int, Meaning] = {}
        self._useless: dict[int, str] = {}

    def of(self, schema_id: int) -> Meaning:
        if schema_id not in self._known:
            if schema_id not in self._useless:
                self._look_up(schema_id)
            if schema_id in self._useless:
                raise DoesNotDecode(self._useless[schema_id])
        return self._known[schema_id]

    def _look_up(self, schema_id: int) -> None:
        try:
            found = self._registry.schema(schema_id)
            if found.kind == self._kind:
                self._known[schema_id] = self._understand(found.text)
            else:
                self._useless[schema_id] = f"schema {schema_id} of the registry is {found.kind}, not {self._kind}"
        except UnknownSchema as error:
            self._useless[schema_id] = str(error)
        except InvalidConfig as error:
            self._useless[schema_id] = f"schema {schema_id} of the registry cannot be used: {error}"
