"""CreateTopics, versions 2 to 7: hand-written, because tests create topics before the first record."""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import ErrorCode
from headrace.model.ids import ZERO_UUID
from headrace.protocol.bounded_reader import FIELD_WEIGHT, INT_WEIGHT, OBJECT_WEIGHT, POINTER_WEIGHT, BoundedReader
from headrace.protocol.primitives import INT16, INT32, Reader, array_length, nullable_string, string

FLEXIBLE_FROM = 5
CONFIGS_FROM = 5
TOPIC_IDS_FROM = 7

_CONFIG_ERROR_TAG = 0
_TOPIC_BYTES_MIN = 9
_ASSIGNMENT_BYTES_MIN = 5
_CONFIG_BYTES_MIN = 2
_PAIR_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 2 * FIELD_WEIGHT
_TOPIC_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 5 * FIELD_WEIGHT + 2 * INT_WEIGHT

_COUNTS = Struct(">ih")
_FLAGS = Struct(">?b?")


class NewTopic(NamedTuple):
    name: str
    partitions: int  # -1: the broker's default, or as many as there are assignments
    replication_factor: int
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()  # partition and its replicas
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopicsRequest(NamedTuple):
    topics: tuple[NewTopic, ...]
    timeout_ms: int
    validate_only: bool


class ConfigRow(NamedTuple):
    name: str
    value: str | None
    read_only: bool
    source: int
    is_sensitive: bool


class CreatedTopic(NamedTuple):
    name: str
    error: int = ErrorCode.NONE
    message: str | None = None
    topic_id: UUID = ZERO_UUID
    partitions: int = -1
    replication_factor: int = -1
    configs: Sequence[ConfigRow] | None = None
    config_error: int = ErrorCode.NONE  # why configs are missing although the topic was created


class CreateTopicsResponse(NamedTuple):
    topics: Sequence[CreatedTopic]
    throttle_ms: int = 0


def decode_request(body: Reader, version: int) -> CreateTopicsRequest:
    reader = BoundedReader.of_body(body)
    topics = tuple([_decode_topic(reader) for _ in reader.elements(_TOPIC_BYTES_MIN, _TOPIC_WEIGHT)])
    request = CreateTopicsRequest(topics, reader.int32(), reader.boolean())
    reader.skip_tags()
    reader.expect_end()
    return request


def _decode_topic(reader: BoundedReader) -> NewTopic:
    name, partitions, replication_factor = reader.string(), reader.int32(), reader.int16()
    indexes = reader.elements(_ASSIGNMENT_BYTES_MIN, _PAIR_WEIGHT + INT_WEIGHT)
    assignments = tuple([_decode_assignment(reader) for _ in indexes])
    indexes = reader.elements(_CONFIG_BYTES_MIN, _PAIR_WEIGHT)
    configs = tuple([_decode_config(reader) for _ in indexes])
    reader.skip_tags()
    return NewTopic(name, partitions, replication_factor, assignments, configs)


def _decode_assignment(reader: BoundedReader) -> tuple[int, tuple[int, ...]]:
    partition = reader.int32()
    indexes = reader.elements(INT32.size, POINTER_WEIGHT + INT_WEIGHT)
    brokers = tuple([reader.int32() for _ in indexes])
    reader.skip_tags()
    return partition, brokers


def _decode_config(reader: BoundedReader) -> tuple[str, str | None]:
    config = reader.string(), reader.nullable_string()
    reader.skip_tags()
    return config


def count_errors(version: int, response: CreateTopicsResponse, counts: Counter[int]) -> None:
    """Counts the topics' errors. The reason for missing configs is not counted, because the topic was created."""
    for topic in response.topics:
        if topic.error:
            counts[topic.error] += 1


def encode_response(version: int, response: CreateTopicsResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    body = bytearray(INT32.pack(response.throttle_ms))
    body += array_length(len(response.topics), flexible)
    for topic in response.topics:
        body += string(topic.name, flexible)
        if version >= TOPIC_IDS_FROM:
            body += topic.topic_id.bytes
        body += INT16.pack(topic.error) + nullable_string(topic.message, flexible)
        if version >= CONFIGS_FROM:
            _encode_outcome(body, topic)
    if flexible:
        body.append(0)
    return bytes(body)


def _encode_outcome(body: bytearray, topic: CreatedTopic) -> None:
    """Encodes the created topic: counts, configs, and the tag with the reason for missing configs."""
    body += _COUNTS.pack(topic.partitions, topic.replication_factor)
    body += array_length(-1 if topic.configs is None else len(topic.configs), True)
    for config in topic.configs or ():
        body += string(config.name, True) + nullable_string(config.value, True)
        body += _FLAGS.pack(config.read_only, config.source, config.is_sensitive) + b"\x00"
    if topic.config_error == ErrorCode.NONE:
        body.append(0)
    else:
        body += bytes((1, _CONFIG_ERROR_TAG, INT16.size)) + INT16.pack(topic.config_error)
