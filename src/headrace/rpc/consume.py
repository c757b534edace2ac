"""StreamConsume: a member of a consumer group, or a reader of named partitions, at the other end of a stream.

Decides what a stream is told and when offsets count as read. A client that does not read holds up only itself.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

from headrace.client.beginning import GroupBeginning
from headrace.client.consuming import Assigned, ConsumerThread, Place, Read
from headrace.client.factory import Overrides
from headrace.client.pool import TooBusy
from headrace.client.reading import EARLIEST
from headrace.rpc import headrace_pb2 as pb
from headrace.rpc.calls import Write, until_stopped
from headrace.rpc.checks import default, group_name, partition_index, short, topic_name, within
from headrace.rpc.clients import CLIENT_ID, CONSUME_STREAMS_MAX, Clients
from headrace.rpc.failures import failed, invalid, stopping
from headrace.rpc.groups import SESSION_TIMEOUT_MS, TIMEOUT_MS_MAX, topic_partitions
from headrace.rpc.packing import Packed, Packer
from headrace.rpc.sent import Sent

RECORDS_DEFAULT, RECORDS_MAX = 1000, 10_000
MAX_POLL_INTERVAL_MS = 300_000
# What librdkafka reads ahead for one stream, beyond the portions under way.
READ_AHEAD_KIB = 4 * 1024
# A fetch is unpacked whole, whatever is waiting already, and may have been packed a hundredfold.
FETCH_BYTES = 256 * 1024
READ_AHEAD_RECORDS = 20_000
TOPICS_MAX = 1000
_AUTO_COMMIT_INTERVAL_MS = 2000

Portion = list[Packed]
Requests = AsyncIterator[pb.StreamConsumeRequest]


async def stream_consume(clients: Clients, requests: Requests, write: Write) -> None:
    requests = until_stopped(clients, requests)
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


async def _consumer(clients: Clients, subscribe: pb.Subscribe) -> ConsumerThread[Portion]:
    topics, places = _wanted(subscribe)
    for name in topics or dict.fromkeys(place.topic for place in places):
        await clients.topic(name)
    for place in places:
        await clients.cluster.partition(place.topic, place.partition)
    settings = _settings(subscribe)
    messages_max = default("max_records", subscribe.max_records, RECORDS_DEFAULT, RECORDS_MAX)
    beginning = _beginning(clients, subscribe)
    if clients.consume_slots.locked():
        raise TooBusy(f"{CONSUME_STREAMS_MAX} streams consume already")
    await clients.consume_slots.acquire()  # nothing may fail between here and the thread, which gives it back
    return ConsumerThread(
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
    """librdkafka would look for the latest records after the client has received its assignment."""
    if not subscribe.topics or subscribe.offset_reset != pb.LATEST:
        return None
    committed_only = subscribe.isolation_level != pb.READ_UNCOMMITTED
    return GroupBeginning(clients.coordinators, subscribe.group_id, latest=True, committed_only=committed_only)


def _wanted(subscribe: pb.Subscribe) -> tuple[list[str], list[Place]]:
    if bool(subscribe.topics) == bool(subscribe.assign):
        raise invalid("name either topics, to share them with the group, or partitions in assign")
    if len(subscribe.topics) > TOPICS_MAX or len(subscribe.assign) > TOPICS_MAX:
        raise invalid(f"one stream reads {TOPICS_MAX} topics or partitions at most")
    places = [
        Place(topic_name(one.topic), partition_index(one.partition), within("assign.offset", one.offset, EARLIEST))
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
        "group.id": subscribe.group_id or f"{CLIENT_ID}-{secrets.token_hex(8)}",  # never committed to
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
    def __init__(self, consumer: ConsumerThread[Portion], subscribe: pb.Subscribe, write: Write) -> None:
        self._consumer, self._subscribe = consumer, subscribe
        self._sent = Sent()
        self._write = write
        self._turn = asyncio.Lock()  # one message of a stream at a time

    async def pass_on(self) -> None:
        while True:
            match await self._consumer.next_event():
                case Assigned(places):
                    await self._tell(_assignment(places))
                case Read(portion, assignment):
                    for message in portion:
                        # Noted first: the client may name it as soon as it has received it.
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
        group_name(self._subscribe.group_id)  # who has none cannot commit
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

    async def _commit(self, commit: pb.Commit) -> Sequence[Place]:
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


def _place(one: pb.PartitionOffset) -> Place:
    return Place(
        topic_name(one.topic), partition_index(one.partition), within("commit.offset", one.offset, 0), one.metadata
    )


def _assignment(places: Sequence[Place]) -> pb.StreamConsumeResponse:
    shares: dict[str, list[int]] = {}
    for place in places:
        shares.setdefault(place.topic, []).append(place.partition)
    return pb.StreamConsumeResponse(assignment=pb.AssignmentEvent(partitions=topic_partitions(shares.items())))
