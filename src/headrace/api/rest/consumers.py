"""Consumer instances of REST clients: group members that exist between HTTP requests, with polls, deliveries and
acknowledgements.

    poll ──► delivery 1 ──► poll (or poll?delivery=1, or commit) ──► acknowledged
                     └── the connection broke, or poll?delivery=0 ──► delivered again, as delivery 2

A commit covers acknowledged deliveries, and the last response unless it is known to be lost.

The number of instances is limited, and an instance that receives no requests for its session timeout is removed.
Instances belong to this process: after a restart of the gateway a client joins again and continues at its committed
offsets.

A poll takes records only when its turn comes and its client is still connected. It is noted as sent afterwards.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.responses import Response

from headrace.api.rest.errors import Problem
from headrace.api.rest.http import Receive, Scope, Send, unread, while_connected
from headrace.client.aio.consumer import (
    Beginning,
    ConsumerPoller,
    GroupConsumer,
    GroupConsumerConfig,
    PartitionKey,
    place_of,
)
from headrace.client.aio.topic_monitor import MonitoredTopics, TopicDeletionMonitor
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass(slots=True)
class Delivery:
    """Records of one response. `unread` is set when the connection shows that the response was not received."""

    number: int
    assignment: int
    messages: "Sequence[Message]"
    unread: asyncio.Event
    sent: bool = False

    @property
    def received(self) -> bool:
        """Whether the response was sent and is not known to be lost."""
        return self.sent and not self.unread.is_set()


class Deliveries:
    def __init__(self, member: GroupConsumer) -> None:
        self._member = member
        self._number = self._acknowledged_number = 0  # of the last delivery, and of the last acknowledged one
        self._last: Delivery | None = None
        self._offsets: dict[PartitionKey, int] = {}  # next offsets after the acknowledged records
        self._assignment = member.assignment

    @property
    def number(self) -> int:
        """The delivery number that a client which has received the current response acknowledges."""
        return self._acknowledged_number if self._last is None else self._last.number

    def next_poll(self, number: int | None) -> None:
        """Acknowledges the last delivery, or puts its records back if the client did not receive it.

        `number` is the last delivery that the client has received, if the request contains it.
        """
        self._check(number)
        if self._last is None:
            return
        received = self._last.received if number is None else number == self._last.number
        if received:
            self._acknowledge(self._last)
        elif self._last.assignment == self._member.assignment:
            self._member.put_back(self._last.messages)
        self._last = None

    def deliver(self, messages: "Sequence[Message]", unread: asyncio.Event) -> Delivery | None:
        """Returns a delivery of these records; None if there are none."""
        if not messages:
            return None
        self._number += 1
        self._last = Delivery(self._number, self._member.assignment, messages, unread)
        return self._last

    def offsets(self, number: int | None) -> dict[PartitionKey, int]:
        """Returns the offsets that a commit covers: up to the delivery of this number, or all that was received."""
        self._check(number)
        last = self._last
        if last is not None and (last.received if number is None else number == last.number):
            self._acknowledge(last)
            self._last = None
        return self._current()

    def _acknowledge(self, delivery: Delivery) -> None:
        self._acknowledged_number = delivery.number
        offsets = self._current()
        if delivery.assignment == self._assignment:
            offsets |= {place_of(message): (message.offset() or 0) + 1 for message in delivery.messages}

    def _current(self) -> dict[PartitionKey, int]:
        """Returns the acknowledged offsets; empty after a new assignment: other members may own the partitions."""
        if self._assignment != self._member.assignment:
            self._assignment, self._offsets = self._member.assignment, {}
        return self._offsets

    def _check(self, number: int | None) -> None:
        if number is not None and number not in (self._acknowledged_number, self._number):
            raise Problem(
                409,
                f"delivery {number} is not the last one, {self._number}, and not the last acknowledged one, "
                f"{self._acknowledged_number}; name the `delivery` of the last response that was received",
            )


log = logging.getLogger(__name__)

# Each instance costs half a megabyte and four threads of librdkafka.
MEMBERS_MAX = 1_000
REAP_INTERVAL_S = 1.0


@dataclass(slots=True, eq=False)
class Consumer:
    id: str
    member: GroupConsumer
    expires_after_s: float
    last_asked: float
    listens: bool = False  # a consumer of an event stream; removed when its connection ends
    # Serializes requests: two concurrent polls would divide the records between them without order.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    deliveries: Deliveries = field(init=False)

    def __post_init__(self) -> None:
        self.deliveries = Deliveries(self.member)


class ConsumerRegistry:
    def __init__(self, bootstrap: str, watch: TopicDeletionMonitor, now: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap, self._watch, self._now = bootstrap, watch, now
        self._poller = ConsumerPoller()
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._members: dict[GroupConsumer, MonitoredTopics] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._members)

    def join(
        self,
        settings: GroupConsumerConfig,
        *,
        beginning: Beginning | None = None,
        places: Mapping[PartitionKey, int] | None = None,
    ) -> GroupConsumer:
        """Creates a group member, or a consumer of `places` without a group. The caller must pass it to `leave`."""
        if len(self._members) >= MEMBERS_MAX:
            raise Problem(
                429,
                f"this gateway has {MEMBERS_MAX:,} consumers; let some of them leave, or start another gateway",
                code=ErrorCode.GROUP_MAX_SIZE_REACHED,
                retriable=True,
            )
        member = GroupConsumer(self._bootstrap, settings, self._poller, beginning=beginning, places=places)
        self._members[member] = self._watch.watch(settings.topics, member.fail)
        return member

    @asynccontextmanager
    async def joined(
        self, settings: GroupConsumerConfig, places: Mapping[PartitionKey, int]
    ) -> AsyncIterator[GroupConsumer]:
        """A consumer of `places` without a group, for the duration of the context."""
        member = self.join(settings, places=places)
        try:
            yield member
        finally:
            await self.leave(member)

    @asynccontextmanager
    async def listening(
        self, settings: GroupConsumerConfig, id_: str, beginning: Beginning
    ) -> AsyncIterator[GroupConsumer]:
        """A group member for an event stream. A client that reconnects with the same id replaces its old stream."""
        key = (settings.group, id_)
        before = self._consumers.get(key)
        if before is not None and not before.listens:
            raise Problem(409, f"there is a consumer {id_} in {settings.group} already; choose another id")
        member = self.join(settings, beginning=beginning)
        if before is not None:
            before.member.fail(Problem(409, f"another stream of {settings.group} has the id {id_} now"))
        self._consumers[key] = mine = Consumer(id_, member, math.inf, self._now(), listens=True)
        try:
            yield member
        finally:
            if self._consumers.get(key) is mine:
                del self._consumers[key]
            await self.leave(member)

    async def leave(self, member: GroupConsumer) -> None:
        watched = self._members.pop(member, None)
        if watched is not None:
            self._watch.forget(watched)
        await member.close()

    def create(self, settings: GroupConsumerConfig, name: str | None, beginning: Beginning | None) -> Consumer:
        """Creates a group member that is kept between the requests of its client."""
        id_ = name or uuid.uuid4().hex
        if (settings.group, id_) in self._consumers:
            raise Problem(409, f"there is a consumer {id_} in {settings.group} already; choose another id")
        consumer = Consumer(
            id_, self.join(settings, beginning=beginning), settings.session_timeout_ms / 1000, self._now()
        )
        self._consumers[settings.group, id_] = consumer
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap())
        return consumer

    def find(self, group: str, id_: str) -> Consumer:
        """Returns the consumer and renews its expiry. Problem 404 if there is none."""
        consumer = self._consumers.get((group, id_))
        if consumer is None:
            raise Problem(
                404,
                f"there is no consumer {id_} in {group}; it has left, or was silent for too long: join again",
                code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
        consumer.last_asked = self._now()
        return consumer

    def of(self, group: str) -> list[Consumer]:
        return [one for (name, _), one in sorted(self._consumers.items()) if name == group]

    async def remove(self, group: str, id_: str) -> None:
        consumer = self.find(group, id_)
        del self._consumers[group, id_]
        if consumer.listens:
            consumer.member.fail(Problem(404, f"{id_} has left {group}", code=ErrorCode.UNKNOWN_MEMBER_ID))
        await self.leave(consumer.member)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_INTERVAL_S)
            now = self._now()
            for (group, id_), one in list(self._consumers.items()):
                if now - one.last_asked > one.expires_after_s and not one.turn.locked():
                    log.info("consumer %s of %s was silent for %.0f s and is let go", id_, group, one.expires_after_s)
                    del self._consumers[group, id_]
                    task = asyncio.create_task(self.leave(one.member))
                    self._leaving.add(task)
                    task.add_done_callback(self._leaving.discard)

    def wake_all(self) -> None:
        """Ends all waiting polls with the records that are there, because the gateway is stopping."""
        for member in self._members:
            member.wake()

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        await asyncio.gather(*(member.close() for member in self._members), *self._leaving, return_exceptions=True)


class PollResponse(Response):
    def __init__(
        self,
        consumer: Consumer,
        touch: Callable[[], None],
        show: "Callable[[list[Message]], bytes]",
        count_max: int,
        wait_s: float,
        delivery: int | None,
    ) -> None:
        """`touch` renews the consumer's expiry and raises if it has been removed; `show` encodes the body."""
        super().__init__(media_type="application/json")
        self._consumer, self._touch, self._show = consumer, touch, show
        self._count_max, self._wait_s, self._delivery = count_max, wait_s, delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Cancelled only while it waits for its turn or for records, when it has taken no records yet.
        await while_connected(scope, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        consumer, lost = self._consumer, unread(scope)
        async with consumer.turn:
            if lost.is_set():
                return  # the client disconnected while the request was queued: it acknowledges nothing
            self._touch()
            consumer.deliveries.next_poll(self._delivery)
            messages = await consumer.member.poll(self._count_max, self._wait_s)
            delivery = consumer.deliveries.deliver(messages, lost)
            self._touch()
            await self._send(delivery, messages, scope, receive, send)

    async def _send(
        self, delivery: Delivery | None, messages: "list[Message]", scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Sends the response. If this fails, the records are delivered again, because the delivery is not noted as
        sent.
        """
        self.body = self._show(messages)
        self.init_headers()
        await super().__call__(scope, receive, send)
        if delivery is not None:
            delivery.sent = True
