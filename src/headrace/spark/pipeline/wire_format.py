"""Confluent's wire format: values that say which schema of a registry they were written with.

    0x00 | schema id, 4 bytes | payload                       Avro, JSON
    0x00 | schema id, 4 bytes | message indexes | payload     Protobuf

A value that does not begin so, and one whose id the registry does not know, is a record that does not decode. A
registry that does not answer says nothing about any record.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline.decoding import ERROR, VALUE
from headrace.spark.pipeline.registry import JSON, UnknownSchema, registry_at
from headrace.spark.pipeline.row_decoder import DoesNotDecode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HEAD_BYTES = 5
PAYLOAD = "_headrace_payload"

Meaning = TypeVar("Meaning")


def schema_id_of(value: bytes) -> int:
    if len(value) < HEAD_BYTES or value[0] != 0:
        raise DoesNotDecode("the value does not begin with a schema id (a zero and four bytes)")
    return int.from_bytes(value[1:HEAD_BYTES], "big")


def split_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Which message of a .proto it is, from the outermost inwards, and the rest: a count and as many zigzag numbers,
    but a lone zero for the first message."""
    count, at = _zigzag(payload, 0)
    indexes = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        indexes.append(index)
    return tuple(indexes) or (0,), payload[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DoesNotDecode("the message indexes behind the schema id are cut short")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


class Writers(Generic[Meaning]):
    """What the schema behind an id means to a decoder. Each is looked at once, those that nobody knows as well."""

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


def with_payload(renamed: "DataFrame", url: str) -> "DataFrame":
    """For JSON, which needs no writer's schema to be read: the payload in a column, null where there is an error."""
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    schema = StructType([*renamed.schema.fields, StructField(PAYLOAD, BinaryType()), StructField(ERROR, StringType())])

    def split(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        writers = Writers(url, JSON, lambda text: text)
        for batch in batches:
            columns = [*batch.columns, *_split(batch.column(VALUE), writers)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, PAYLOAD, ERROR])

    return renamed.mapInArrow(split, schema)


def _split(values: "pa.Array[Any]", writers: Writers[Any]) -> "tuple[pa.Array[Any], pa.Array[Any]]":
    """Payloads and errors. Heads are few and values many, so each head is judged once."""
    import pyarrow as pa
    from pyarrow import compute as pc

    heads = pc.dictionary_encode(pc.binary_slice(values, 0, HEAD_BYTES))
    judged = pa.array([_error_of(head, writers) for head in heads.dictionary.to_pylist()], pa.string())
    errors = judged.take(heads.indices)
    pairs = zip(values.to_pylist(), errors.to_pylist(), strict=True)
    payloads = [None if value is None or error else value[HEAD_BYTES:] for value, error in pairs]
    return pa.array(payloads, pa.binary()), errors


def _error_of(head: bytes, writers: Writers[Any]) -> str | None:
    try:
        writers.of(schema_id_of(head))
    except DoesNotDecode as error:
        return str(error)
    return None
