"""Records as server-sent events, for as long as a client listens: of a group's share, or of a whole topic.

    id: my-topic:0:101,57,33        where Last-Event-ID goes on, see event_ids.py
    data: {"topic":"my-topic","partition":2,"offset":32,…}

Commits nothing: an event that was written to a connection may never arrive. A client acknowledges by the id that it
sends when it connects again, or by a commit of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from headrace.client.member import Member, Place, place_of
from headrace.client.member_settings import POLL_INTERVAL_MS_MAX
from headrace.gateway.bodies import Disconnected, Message, Receive, Scope, Send
from headrace.gateway.connections import abort
from headrace.gateway.delivered import delivered
from headrace.gateway.encoding import Format
from headrace.gateway.problems import problem_of
from headrace.gateway.services import Services

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

# Proxies cut connections that are silent for a minute.
KEEP_ALIVE_S = 15.0
# What a client should wait before it connects again: a restart of the gateway takes about that.
RECONNECT_MS = 1_000
RECORDS_AT_ONCE = 500
LOOK_S = 1.0
# A client that reads nothing for this long loses its stream, and its partitions go to others: Kafka's default for
# consumers that do not poll.
UNREAD_S_MAX = POLL_INTERVAL_MS_MAX / 1000

# Place and the offset behind an event in; the event's id out.
Moved = Callable[[Place, int], str]


class EventStream(Response):
    """Sends until the client hangs up or the gateway stops; then leaves `reading`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        client: Services,
        reading: AbstractAsyncContextManager[Member],
        moved: Moved,
        format_: Format,
        *,
        first_id: Callable[[], str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`first_id` is the id of an assignment, for streams whose positions a client must know before any event."""
        super().__init__()
        self._client, self._reading, self._moved, self._format = client, reading, moved, format_
        self._first_id = first_id
        self._more_headers = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # nginx would gather events before it passes them on
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
                abort(scope)  # what is left of the response would wait for the client too
                raise Disconnected from None

        return send_in_time

    async def _send_all(self, member: Member, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RECONNECT_MS, "more_body": True})
        async for piece in self._pieces(member):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self, member: Member) -> AsyncIterator[bytes]:
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

    def _assignment(self, member: Member) -> bytes:
        """Which partitions are this stream's: when it begins to read, and whenever that changes."""
        rows = [{"topic": topic, "partition": partition} for topic, partition in member.assigned]
        id_ = b"id: %s\n" % self._first_id().encode() if self._first_id is not None else b""
        return b"%sevent: assigned\ndata: %s\n\n" % (id_, orjson.dumps(rows))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
