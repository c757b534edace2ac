"""Consumed records as the bytes of messages of the stream. Runs in the consumer's thread."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from headrace.client.publisher import Headers
from headrace.rpc import headrace_pb2 as pb

if TYPE_CHECKING:
    from confluent_kafka import Message

# gRPC clients refuse messages over 4 MiB unless they are told otherwise. One record may be larger; it goes alone.
MESSAGE_BYTES_MAX = 1024 * 1024
# Offset, time, lengths and tags of a record.
RECORD_OVERHEAD_BYTES = 32


def pack(messages: "Sequence[Message]") -> list[bytes]:
    return [_packed(stretch) for stretch in _stretches(messages)]


def _stretches(messages: "Sequence[Message]") -> "Iterator[Sequence[Message]]":
    """Cut where the bytes would become too many."""
    size = start = 0
    for index, message in enumerate(messages):
        size += len(message) + RECORD_OVERHEAD_BYTES
        if size > MESSAGE_BYTES_MAX and index > start:
            yield messages[start:index]
            start, size = index, len(message) + RECORD_OVERHEAD_BYTES
    yield messages[start:]


def _packed(messages: "Sequence[Message]") -> bytes:
    event = pb.RecordsEvent()
    topic: str | None = None
    partition: int | None = None
    records = None
    for message in messages:
        if message.partition() != partition or message.topic() != topic:
            topic, partition = message.topic(), message.partition()
            records = event.partitions.add(topic=topic, partition=partition).records
        assert records is not None
        record = records.add(
            key=message.key(), value=message.value(), offset=message.offset(), timestamp_ms=message.timestamp()[1]
        )
        for name, value in cast(Headers, message.headers() or ()):
            record.headers.add(name=name, value=value)
    return pb.StreamConsumeResponse(records=event).SerializeToString()
