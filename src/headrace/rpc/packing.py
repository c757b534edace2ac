"""Consumed records as the bytes of messages of the stream. Runs in the consumer's thread."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.consuming import Place, Run
from headrace.client.message_headers import headers_of
from headrace.rpc import headrace_pb2 as pb

if TYPE_CHECKING:
    from confluent_kafka import Message

# gRPC clients refuse messages over 4 MiB unless they are told otherwise. One record may be larger; it goes alone.
MESSAGE_BYTES_MAX = 1024 * 1024
# Offset, time, lengths and tags of a record.
RECORD_OVERHEAD_BYTES = 32


class Packed(NamedTuple):
    """A message of the stream, and where each of its partitions goes on behind it."""

    number: int
    body: bytes
    next_offsets: tuple[Place, ...]


class Packer:
    """Numbers the messages of one stream."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self, runs: Iterable[Run]) -> list[Packed]:
        packed: list[Packed] = []
        event, size = pb.RecordsEvent(), 0
        for run in runs:
            for stretch, stretch_bytes in _stretches(run.messages):
                if size and size + stretch_bytes > MESSAGE_BYTES_MAX:
                    packed.append(self._packed(event))
                    event, size = pb.RecordsEvent(), 0
                _add(event.partitions.add(topic=run.topic, partition=run.partition), stretch)
                size += stretch_bytes
        packed.append(self._packed(event))
        return packed

    def _packed(self, event: pb.RecordsEvent) -> Packed:
        event.number = next(self._numbers)
        last = {(one.topic, one.partition): one.records[-1].offset for one in event.partitions}
        offsets = tuple(Place(topic, partition, offset + 1) for (topic, partition), offset in last.items())
        return Packed(event.number, pb.StreamConsumeResponse(records=event).SerializeToString(), offsets)


def _stretches(messages: "Sequence[Message]") -> "Iterator[tuple[Sequence[Message], int]]":
    """Cut where the bytes would become too many; each with its bytes."""
    start = size = 0
    for index, message in enumerate(messages):
        message_bytes = len(message) + RECORD_OVERHEAD_BYTES
        if size + message_bytes > MESSAGE_BYTES_MAX and index > start:
            yield messages[start:index], size
            start, size = index, 0
        size += message_bytes
    yield messages[start:], size


def _add(partition: pb.PartitionRecords, messages: "Sequence[Message]") -> None:
    """Field by field: naming all of them in one call of `add` costs half as much again."""
    add = partition.records.add
    for message in messages:
        record = add()
        key, value, headers = message.key(), message.value(), headers_of(message)
        if key is not None:
            record.key = key
        if value is not None:
            record.value = value
        record.offset = message.offset() or 0  # without error it has one
        record.timestamp_ms = message.timestamp()[1]
        if headers:
            for name, content in headers:
                record.headers.add(name=name, value=content)
