"""StreamConsume: a streaming RPC that is a member of a consumer group or a consumer of assigned partitions.

Records are packed into numbered messages in the consumer's thread. Sending a message acknowledges nothing: offsets
are committed only up to a number that the client returns. A client that reads slowly delays only its own stream.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from headrace.api.grpc.call import Write, until_shutdown
from headrace.api.grpc.clients import CLIENT_ID, CONSUME_STREAMS_MAX, Clients
from headrace.api.grpc.errors import failed, invalid, stopping
from headrace.api.grpc.groups import SESSION_TIMEOUT_MS, TIMEOUT_MS_MAX, topic_partitions
from headrace.api.grpc.validation import default, group_name, partition_index, short, topic_name, within
from headrace.client.aio.fetch import EARLIEST
from headrace.client.aio.start_offsets import GroupBeginning
from headrace.client.aio.threaded_consumer import Assigned, PartitionMessages, PartitionOffset, Read, ThreadedConsumer
from headrace.client.aio.transport import OverloadedError
from headrace.client.librdkafka import Overrides
from headrace.client.message_headers import headers_of
from headrace.rpc import headrace_pb2 as pb

if TYPE_CHECKING:
    from confluent_kafka import Message


# gRPC clients reject messages over 4 MiB by default. A larger record is sent in a message of its own.
MESSAGE_BYTES_MAX = 1024 * 1024
# Offset, timestamp, lengths and field tags of a record.
RECORD_OVERHEAD_BYTES = 32


class Packed(NamedTuple):
    """An encoded message of the stream, and the next offset of each of its partitions."""

    number: int
    body: bytes
    next_offsets: tuple[PartitionOffset, ...]


class Packer:
    """Encodes records as messages of one stream, numbered from 1. Pure; performs no I/O."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self, runs: Iterable[PartitionMessages]) -> list[Packed]:
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
        offsets = tuple(PartitionOffset(topic, partition, offset + 1) for (topic, partition), offset in last.items())
        return Packed(event.number, pb.StreamConsumeResponse(records=event).SerializeToString(), offsets)


def _stretches(messages: "Sequence[Message]") -> "Iterator[tuple[Sequence[Message], int]]":
    """Splits messages at MESSAGE_BYTES_MAX. Yields each part with its size in bytes."""
    start = size = 0
    for index, message in enumerate(messages):
        message_bytes = len(message) + RECORD_OVERHEAD_BYTES
        if size + message_bytes > MESSAGE_BYTES_MAX and index > start:
            yield messages[start:index], size
            start, size = index, 0
        size += message_bytes
    yield messages[start:], size


def _add(partition: pb.PartitionRecords, messages: "Sequence[Message]") -> None:
    """Sets the fields one by one: passing all of them to one call of `add` takes 1.5 times as long."""
    add = partition.records.add
    for message in messages:
        record = add()
        key, value, headers = message.key(), message.value(), headers_of(message)
        if key is not None:
            record.key = key
        if value is not None:
            record.value = value
        record.offset = message.offset() or 0  # None only for a message with an error, and errors do not get here
        record.timestamp_ms = message.timestamp()[1]
        if headers:
            for name, content in headers:
                record.headers.add(name=name, value=content)


# Unacknowledged messages remembered per stream. Beyond this number the oldest two are merged, so that they are
# acknowledged together.
MESSAGES_REMEMBERED_MAX = 10_000

Offsets = dict[tuple[str, int], PartitionOffset]


@dataclass(slots=True)
class _Message:
    number: int
    assignment: int
    offsets: Offsets


class Sent:
    def __init__(self) -> None:
        self._messages: deque[_Message] = deque()
        self._acknowledged = _Message(0, 0, {})
        self._last = 0

    def note(self, number: int, next_offsets: Sequence[PartitionOffset], assignment: int) -> None:
        self._last = number
        self._messages.append(_Message(number, assignment, {(one.topic, one.partition): one for one in next_offsets}))
        if len(self._messages) > MESSAGES_REMEMBERED_MAX:
            self._messages[0] = _together(self._messages.popleft(), self._messages[0])

    def up_to(self, number: int) -> tuple[list[PartitionOffset], int]:
        """Returns the next offsets of the partitions up to the message of this number, and the assignment in which they
        were read.
        """
        if not 0 < number <= self._last:
            raise invalid(f"number is {number}; the last records event of this stream has {self._last}")
        while self._messages and self._messages[0].number <= number:
            self._acknowledged = _together(self._acknowledged, self._messages.popleft())
        return list(self._acknowledged.offsets.values()), self._acknowledged.assignment


def _together(first: _Message, second: _Message) -> _Message:
    """Merges two messages under the number of the second. Offsets of an earlier assignment are dropped: their
    partitions may have belonged to another member since.
    """
    offsets = first.offsets if first.assignment == second.assignment else {}
    return _Message(second.number, second.assignment, offsets | second.offsets)


RECORDS_DEFAULT, RECORDS_MAX = 1000, 10_000
MAX_POLL_INTERVAL_MS = 300_000
# librdkafka's prefetch limit for one stream, in addition to the records already handed to the stream.
READ_AHEAD_KIB = 4 * 1024
# librdkafka decompresses a whole fetch whatever its queue holds, and the compression ratio may be a hundred.
FETCH_BYTES = 256 * 1024
READ_AHEAD_RECORDS = 20_000
TOPICS_MAX = 1000
_AUTO_COMMIT_INTERVAL_MS = 2000

Portion = list[Packed]
Requests = AsyncIterator[pb.StreamConsumeRequest]


async def stream_consume(clients: Clients, requests: Requests, write: Write) -> None:
    requests = until_shutdown(clients, requests)
    first = await anext(requests, None)
    if first is None or first.WhichOneof("request") != "subscribe":
        raise stopping() if clients.stopping.is_set() else invalid("the first request of the stream must be subscribe")
    subscribe = first.subscribe
    consumer = await _consumer(clients, subscribe)
    stream = _Stream(consumer, subscribe, write)
    consumer.start()
    topics, places = _wanted(subscribe)
    watched = clients.watch.watch(topics or [place.topic for place in places], consumer.fail)
    try:
        async with asyncio.TaskGroup() as tasks:
            commits = tasks.create_task(stream.serve_requests(requests))
            stop = tasks.create_task(_raise_when_stopping(clients))
            await stream.pass_on()
            commits.cancel()
            stop.cancel()
    finally:
        clients.watch.forget(watched)
        consumer.stop()


async def _raise_when_stopping(clients: Clients) -> None:
    await clients.stopping.wait()
    raise stopping()


async def _consumer(clients: Clients, subscribe: pb.Subscribe) -> ThreadedConsumer[Portion]:
    topics, places = _wanted(subscribe)
    for name in topics or dict.fromkeys(place.topic for place in places):
        await clients.topic(name)
    for place in places:
        await clients.cluster.partition(place.topic, place.partition)
    settings = _settings(subscribe)
    messages_max = default("max_records", subscribe.max_records, RECORDS_DEFAULT, RECORDS_MAX)
    beginning = _beginning(clients, subscribe)
    if clients.consume_slots.locked():
        raise OverloadedError(f"{CONSUME_STREAMS_MAX} streams consume already")
    # No failure is possible between this line and the thread, which releases the slot.
    await clients.consume_slots.acquire()
    return ThreadedConsumer(
        clients.bootstrap,
        settings,
        Packer(),
        topics=topics,
        places=places,
        beginning=beginning,
        messages_max=messages_max,
        ended=clients.consume_slots.release,
    )


def _beginning(clients: Clients, subscribe: pb.Subscribe) -> GroupBeginning | None:
    """Returns where a `latest` subscription starts, resolved before the client receives its assignment. librdkafka
    would resolve it afterwards, and records produced in between would be skipped.
    """
    if not subscribe.topics or subscribe.offset_reset != pb.LATEST:
        return None
    committed_only = subscribe.isolation_level != pb.READ_UNCOMMITTED
    return GroupBeginning(clients.coordinators, subscribe.group_id, latest=True, committed_only=committed_only)


def _wanted(subscribe: pb.Subscribe) -> tuple[list[str], list[PartitionOffset]]:
    if bool(subscribe.topics) == bool(subscribe.assign):
        raise invalid("name either topics, to share them with the group, or partitions in assign")
    if len(subscribe.topics) > TOPICS_MAX or len(subscribe.assign) > TOPICS_MAX:
        raise invalid(f"one stream reads {TOPICS_MAX} topics or partitions at most")
    places = [
        PartitionOffset(
            topic_name(one.topic), partition_index(one.partition), within("assign.offset", one.offset, EARLIEST)
        )
        for one in subscribe.assign
    ]
    if subscribe.topics or subscribe.auto_commit:
        group_name(subscribe.group_id)
    return [topic_name(name) for name in subscribe.topics], places


def _settings(subscribe: pb.Subscribe) -> Overrides:
    session_ms = default("session_timeout_ms", subscribe.session_timeout_ms, SESSION_TIMEOUT_MS, TIMEOUT_MS_MAX)
    poll_ms = default("max_poll_interval_ms", subscribe.max_poll_interval_ms, MAX_POLL_INTERVAL_MS, 24 * 3600_000)
    if poll_ms < session_ms:
        raise invalid(f"max_poll_interval_ms is {poll_ms}; it may not be less than the session timeout, {session_ms}")
    settings: dict[str, str | int | float | bool] = {
        "client.id": CLIENT_ID,
        # Nothing is committed to the random group.
        "group.id": subscribe.group_id or f"{CLIENT_ID}-{secrets.token_hex(8)}",
        "enable.auto.commit": subscribe.auto_commit,
        "auto.commit.interval.ms": _AUTO_COMMIT_INTERVAL_MS,
        "enable.partition.eof": False,
        "auto.offset.reset": "latest" if subscribe.offset_reset == pb.LATEST else "earliest",
        "isolation.level": "read_uncommitted" if subscribe.isolation_level == pb.READ_UNCOMMITTED else "read_committed",
        "session.timeout.ms": session_ms,
        "max.poll.interval.ms": poll_ms,
        "max.partition.fetch.bytes": FETCH_BYTES,
        "queued.max.messages.kbytes": READ_AHEAD_KIB,
        "queued.min.messages": READ_AHEAD_RECORDS,
        "fetch.wait.max.ms": 500,
        "allow.auto.create.topics": False,
    }
    if subscribe.group_instance_id:
        settings["group.instance.id"] = short("group_instance_id", subscribe.group_instance_id)
    return settings


class _Stream:
    def __init__(self, consumer: ThreadedConsumer[Portion], subscribe: pb.Subscribe, write: Write) -> None:
        self._consumer, self._subscribe = consumer, subscribe
        self._sent = Sent()
        self._write = write
        self._turn = asyncio.Lock()  # messages of one stream are written one at a time

    async def pass_on(self) -> None:
        while True:
            match await self._consumer.next_event():
                case Assigned(places):
                    await self._tell(_assignment(places))
                case Read(portion, assignment):
                    for message in portion:
                        # Noted before it is sent: the client may acknowledge the message as soon as it arrives.
                        self._sent.note(message.number, message.next_offsets, assignment)
                        await self._tell(message.body)
                    self._consumer.taken()

    async def serve_requests(self, requests: Requests) -> None:
        async for request in requests:
            match request.WhichOneof("request"):
                case "commit":
                    await self._tell(await self._committed(request.commit))
                case "acknowledge":
                    self._acknowledged(request.acknowledge)
                case _:
                    raise invalid("only the first request of the stream subscribes; commit and acknowledge may follow")

    def _acknowledged(self, acknowledge: pb.Acknowledge) -> None:
        if not self._subscribe.auto_commit:
            raise invalid("acknowledge is for streams with auto_commit; send commit")
        offsets, assignment = self._sent.up_to(acknowledge.number)
        self._consumer.store(offsets, assignment)

    async def _committed(self, commit: pb.Commit) -> pb.StreamConsumeResponse:
        group_name(self._subscribe.group_id)  # a stream without a group cannot commit
        event = pb.CommittedEvent()
        try:
            places = await self._commit(commit)
        except Exception as error:
            event.failure.CopyFrom(failed(error).in_stream())
        else:
            event.offsets.extend(
                pb.PartitionOffset(topic=one.topic, partition=one.partition, offset=one.offset, metadata=one.metadata)
                for one in places
            )
        return pb.StreamConsumeResponse(committed=event)

    async def _commit(self, commit: pb.Commit) -> Sequence[PartitionOffset]:
        if bool(commit.offsets) == bool(commit.number):
            raise invalid("commit names either offsets, or the number of the last records event that was processed")
        if commit.number:
            places, assignment = self._sent.up_to(commit.number)
            await self._consumer.commit(places, assignment)
        else:
            places = [_place(one) for one in commit.offsets]
            await self._consumer.commit(places)
        return places

    async def _tell(self, message: "pb.StreamConsumeResponse | bytes") -> None:
        async with self._turn:
            await self._write(message)


def _place(one: pb.PartitionOffset) -> PartitionOffset:
    return PartitionOffset(
        topic_name(one.topic), partition_index(one.partition), within("commit.offset", one.offset, 0), one.metadata
    )


def _assignment(places: Sequence[PartitionOffset]) -> pb.StreamConsumeResponse:
    shares: dict[str, list[int]] = {}
    for place in places:
        shares.setdefault(place.topic, []).append(place.partition)
    return pb.StreamConsumeResponse(assignment=pb.AssignmentEvent(partitions=topic_partitions(shares.items())))
