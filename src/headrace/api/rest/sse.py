"""Server-sent events: event ids, and the streams of a group member or of a whole topic.

An event id contains the next offsets, as a client returns them in Last-Event-ID when it reconnects:

    jobs:0:101,57,0,mail:3:8        jobs-0 continues at 101, jobs-1 at 57, jobs-2 at 0; mail-3 at 8

Ids of a topic stream contain every partition, since they are the only state. Ids of a group stream contain the
partitions of the latest events; the group's committed offsets cover the others.

    id: my-topic:0:101,57,33
    data: {"topic":"my-topic","partition":2,"offset":32,…}

A stream commits nothing, because an event written to a connection may never arrive. A client acknowledges with the id
that it sends when it reconnects, or with a commit.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import problem_of
from headrace.api.rest.http import Disconnected, Message, Receive, Scope, Send, abort
from headrace.api.rest.messages import OFFSET_MAX, PARTITION_MAX, Format, delivered
from headrace.client.aio.consumer import POLL_INTERVAL_MS_MAX, GroupConsumer, PartitionKey, place_of

if TYPE_CHECKING:
    from confluent_kafka import Message as Record


# A request head has 32 KiB. A thousand partitions of a topic fit, whatever their offsets are.
EVENT_ID_BYTES_MAX = 24 * 1024
# Every event has an id, so this bounds the overhead of a group stream with many partitions.
GROUP_ID_BYTES_MAX = 2 * 1024
_DIGITS_MAX = len(str(OFFSET_MAX))


def parse_event_id(text: str) -> dict[PartitionKey, int]:
    """Parses an event id to the next offset of each partition. ValueError if it is malformed."""
    if len(text) > EVENT_ID_BYTES_MAX:
        raise ValueError("too long")
    positions: dict[PartitionKey, int] = {}
    topic, partition = "", -1
    for item in filter(None, text.split(",")):
        if ":" in item:
            topic, first, offset = item.split(":")
            partition = _number(first, PARTITION_MAX)
        else:
            offset, partition = item, partition + 1
        if not topic or partition > PARTITION_MAX:
            raise ValueError(item)
        positions[topic, partition] = _number(offset, OFFSET_MAX)
    return positions


def _number(text: str, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= maximum):
        raise ValueError(text)
    return int(text)


def event_id(positions: Mapping[PartitionKey, int]) -> str:
    return ",".join(_items(positions))


def _items(positions: Mapping[PartitionKey, int]) -> Iterator[str]:
    before: PartitionKey = ("", -1)
    for place in sorted(positions):
        topic, partition = place
        follows = before == (topic, partition - 1)
        yield str(positions[place]) if follows else f"{topic}:{partition}:{positions[place]}"
        before = place


class GroupPositions:
    """Next offsets of a group stream on this connection. An id contains as many partitions as fit."""

    def __init__(self) -> None:
        self._sent: OrderedDict[PartitionKey, int] = OrderedDict()  # ordered by latest event, the most recent last

    def get(self, place: PartitionKey) -> int:
        """Returns the offset after the last event of this partition; -1 if there was none."""
        return self._sent.get(place, -1)

    def moved(self, place: PartitionKey, offset: int) -> str:
        """Returns the id of an event after which this partition continues at `offset`."""
        self._sent[place] = offset
        self._sent.move_to_end(place)
        return event_id(dict(self._latest()))

    def _latest(self) -> Iterator[tuple[PartitionKey, int]]:
        left = GROUP_ID_BYTES_MAX
        for place, offset in reversed(self._sent.items()):
            left -= len(place[0]) + len(str(place[1])) + len(str(offset)) + len("::,")
            if left < 0:
                return
            yield place, offset


class TopicPositions:
    """Next offsets of a topic stream, in partition order."""

    def __init__(self, topic: str, offsets: Sequence[int]) -> None:
        self._topic = topic
        self._texts = [str(offset) for offset in offsets]

    def __len__(self) -> int:
        return len(self._texts)

    def moved(self, place: PartitionKey, offset: int) -> str:
        self._texts[place[1]] = str(offset)
        return self.id()

    def add(self, offsets: Sequence[int]) -> None:
        self._texts += [str(offset) for offset in offsets]

    def id(self) -> str:
        return f"{self._topic}:0:{','.join(self._texts)}"


# Proxies close connections without traffic for a minute.
KEEP_ALIVE_S = 15.0
# Reconnect delay sent to clients: about the duration of a restart of the gateway.
RECONNECT_MS = 1_000
RECORDS_AT_ONCE = 500
LOOK_S = 1.0
# A client that reads nothing for this long loses its stream and its partitions: Kafka's default max.poll.interval.ms.
UNREAD_S_MAX = POLL_INTERVAL_MS_MAX / 1000

# Takes a partition and the offset after an event, returns the event's id.
Moved = Callable[[PartitionKey, int], str]


class EventStream(Response):
    """Sends events until the client disconnects or the gateway stops, then exits `reading`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        client: ApiClients,
        reading: AbstractAsyncContextManager[GroupConsumer],
        moved: Moved,
        format_: Format,
        *,
        first_id: Callable[[], str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`first_id` returns the id of an assignment event, for streams whose clients need the offsets before the first
        record.
        """
        super().__init__()
        self._client, self._reading, self._moved, self._format = client, reading, moved, format_
        self._first_id = first_id
        self._more_headers = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # disables nginx's response buffering
            *self._more_headers,
        ]
        async with self._reading as member:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self._client.figures.streams += 1
            sending = asyncio.create_task(self._send_all(member, self._sending(scope, send)))
            leaving = asyncio.create_task(_wait_for_disconnect(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._client.figures.streams -= 1
                for task in (sending, leaving):
                    task.cancel()
                outcome, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
            if isinstance(outcome, Exception) and not isinstance(outcome, Disconnected):
                raise outcome

    def _sending(self, scope: Scope, send: Send) -> Send:
        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(UNREAD_S_MAX):
                    await send(message)
            except TimeoutError:
                abort(scope)  # the rest of the response would wait for the client as well
                raise Disconnected from None

        return send_in_time

    async def _send_all(self, member: GroupConsumer, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RECONNECT_MS, "more_body": True})
        async for piece in self._pieces(member):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self, member: GroupConsumer) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        silent_since = loop.time()
        assignment = 0
        while not self._client.stopping.is_set():
            try:
                messages = await member.poll(RECORDS_AT_ONCE, LOOK_S)
            except Exception as error:
                yield b"event: problem\ndata: " + problem_of(error).answer("").body + b"\n"
                return
            if member.assignment != assignment:
                assignment = member.assignment
                yield self._assignment(member)
            if messages:
                yield b"".join(self._event(message) for message in messages)
            elif loop.time() - silent_since >= KEEP_ALIVE_S:
                yield b": still here\n\n"
            if messages or loop.time() - silent_since >= KEEP_ALIVE_S:
                silent_since = loop.time()

    def _event(self, message: "Record") -> bytes:
        id_ = self._moved(place_of(message), (message.offset() or 0) + 1)
        return b"id: %s\ndata: %s\n\n" % (id_.encode(), orjson.dumps(delivered(message, self._format)))

    def _assignment(self, member: GroupConsumer) -> bytes:
        """Returns the event with the stream's partitions: sent at the beginning and after every change."""
        rows = [{"topic": topic, "partition": partition} for topic, partition in member.assigned]
        id_ = b"id: %s\n" % self._first_id().encode() if self._first_id is not None else b""
        return b"%sevent: assigned\ndata: %s\n\n" % (id_, orjson.dumps(rows))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
