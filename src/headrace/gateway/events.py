"""A topic as server-sent events: a member of a real group for as long as somebody listens.

    id: my-topic:0:101,my-topic:3:57        for each partition, the next offset: where Last-Event-ID goes on
    data: {"topic":"my-topic","partition":3,"offset":56,…}

Decides when what was sent is committed: a second later, once a second. An event that was written to a connection that
broke may never have arrived, so the last ones before an end are not committed; the client's Last-Event-ID says exactly
which ones it has seen, and wins over what is committed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from headrace.client.member import Member, Place
from headrace.gateway.bodies import Receive, Scope, Send
from headrace.gateway.delivered import delivered
from headrace.gateway.encoding import OFFSET_MAX, PARTITION_MAX, Format
from headrace.gateway.problems import problem_of
from headrace.gateway.services import Services

if TYPE_CHECKING:
    from confluent_kafka import Message

# Proxies cut connections that are silent for a minute.
KEEP_ALIVE_S = 15.0
COMMIT_INTERVAL_S = 1.0
# Nobody waits for a commit's answer; should one have been lost, everything is said again after so many rounds.
COMMIT_ALL_EVERY = 10
# What a client should wait before it connects again: a restart of the gateway takes about that.
RECONNECT_MS = 1_000
RECORDS_AT_ONCE = 500
# An id names the partitions that one member has: a few thousand at most.
EVENT_ID_BYTES_MAX = 64 * 1024


def parse_event_id(text: str) -> dict[Place, int]:
    """Where each partition goes on; ValueError if this is none of ours."""
    if len(text) > EVENT_ID_BYTES_MAX:
        raise ValueError("too long")
    positions: dict[Place, int] = {}
    for item in filter(None, text.split(",")):
        topic, partition, offset = item.split(":")
        if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit() and topic):
            raise ValueError(item)
        positions[topic, int(partition)] = int(offset)
        if int(partition) > PARTITION_MAX or int(offset) > OFFSET_MAX:
            raise ValueError(item)
    return positions


def event_id(positions: Mapping[Place, int]) -> str:
    return ",".join(f"{topic}:{partition}:{offset}" for (topic, partition), offset in sorted(positions.items()))


class EventStream(Response):
    """Sends until the client hangs up or the gateway stops; then leaves the group."""

    media_type = "text/event-stream"

    def __init__(
        self, client: Services, member: Member, positions: Mapping[Place, int], *, commits: bool, format_: Format
    ) -> None:
        super().__init__()
        self._client, self._member, self._format = client, member, format_
        self._positions = dict(positions)
        self._commits = commits
        self._committed: dict[Place, int] = {}
        self._seasoned: dict[Place, int] = {}
        self._rounds = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # nginx would gather events before it passes them on
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._client.figures.streams += 1
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._client.figures.streams -= 1
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._client.consumers.leave(self._member)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RECONNECT_MS, "more_body": True})
        async for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        silent_since = committed_at = loop.time()
        rebalances = self._member.rebalances
        while not self._client.stopping.is_set():
            try:
                messages = await self._member.poll(RECORDS_AT_ONCE, COMMIT_INTERVAL_S)
            except Exception as error:
                yield b"event: problem\ndata: " + problem_of(error).answer("").body + b"\n"
                return
            if self._member.rebalances != rebalances:
                rebalances = self._member.rebalances
                self._keep_own()
                yield self._assignment()
            if messages:
                yield b"".join(self._event(message) for message in messages)
            elif loop.time() - silent_since >= KEEP_ALIVE_S:
                yield b": still here\n\n"
            if messages or loop.time() - silent_since >= KEEP_ALIVE_S:
                silent_since = loop.time()
            # Behind the yield: what was handed to the connection, never what is about to be.
            if self._commits and loop.time() - committed_at >= COMMIT_INTERVAL_S:
                committed_at = loop.time()
                self._commit()

    def _event(self, message: "Message") -> bytes:
        place = (message.topic() or "", message.partition() or 0)
        self._positions[place] = (message.offset() or 0) + 1
        data = orjson.dumps(delivered(message, self._format))
        return b"id: %s\ndata: %s\n\n" % (event_id(self._positions).encode(), data)

    def _assignment(self) -> bytes:
        """Which partitions are this stream's: when it joins, and whenever others come and go."""
        rows = [{"topic": topic, "partition": partition} for topic, partition in self._member.assigned]
        return b"event: assigned\ndata: %s\n\n" % orjson.dumps(rows)

    def _keep_own(self) -> None:
        """What others read now is theirs to remember."""
        own = set(self._member.assigned)
        self._positions = {place: at for place, at in self._positions.items() if place in own}

    def _commit(self) -> None:
        """What was sent before the last round, and has had a second to arrive."""
        own = set(self._member.assigned)
        self._rounds += 1
        if self._rounds % COMMIT_ALL_EVERY == 0:
            self._committed.clear()
        due = {place: at for place, at in self._seasoned.items() if place in own and self._committed.get(place) != at}
        self._member.commit_soon(due)
        self._committed |= due
        self._seasoned = dict(self._positions)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
