"""Consumers that live between HTTP requests: members of a group on behalf of clients who can only ask.

Decides how many there may be and when one that nobody asks any more is let go. They belong to this process: a client
whose gateway is another one after a restart joins again and goes on where it has committed.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.client.member import Beginning, Member, Place
from headrace.client.member_settings import MemberSettings
from headrace.client.poller import Poller
from headrace.client.topic_watch import TopicWatch, Watched
from headrace.gateway.deliveries import Deliveries
from headrace.gateway.problems import Problem
from headrace.model.errors import ErrorCode

log = logging.getLogger(__name__)

# Each costs half a megabyte and four threads of librdkafka.
MEMBERS_MAX = 1_000
REAP_INTERVAL_S = 1.0


@dataclass(slots=True, eq=False)
class Consumer:
    id: str
    member: Member
    expires_after_s: float
    last_asked: float
    listens: bool = False  # at the end of a stream, which ends its life too
    # One request at a time: two polls at once would share out records without order.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    deliveries: Deliveries = field(init=False)

    def __post_init__(self) -> None:
        self.deliveries = Deliveries(self.member)


class Consumers:
    def __init__(self, bootstrap: str, watch: TopicWatch, now: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap, self._watch, self._now = bootstrap, watch, now
        self._poller = Poller()
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._members: dict[Member, Watched] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._members)

    def join(
        self,
        settings: MemberSettings,
        *,
        beginning: Beginning | None = None,
        places: Mapping[Place, int] | None = None,
    ) -> Member:
        """A member, or a reader of `places`, for a caller that gives it to `leave`."""
        if len(self._members) >= MEMBERS_MAX:
            raise Problem(
                429,
                f"this gateway has {MEMBERS_MAX:,} consumers; let some of them leave, or start another gateway",
                code=ErrorCode.GROUP_MAX_SIZE_REACHED,
                retriable=True,
            )
        member = Member(self._bootstrap, settings, self._poller, beginning=beginning, places=places)
        self._members[member] = self._watch.watch(settings.topics, member.fail)
        return member

    @asynccontextmanager
    async def joined(self, settings: MemberSettings, places: Mapping[Place, int]) -> AsyncIterator[Member]:
        """A reader without a group."""
        member = self.join(settings, places=places)
        try:
            yield member
        finally:
            await self.leave(member)

    @asynccontextmanager
    async def listening(self, settings: MemberSettings, id_: str, beginning: Beginning) -> AsyncIterator[Member]:
        """A member whose client listens to a stream. A client that connects again takes the place of its old stream."""
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

    async def leave(self, member: Member) -> None:
        watched = self._members.pop(member, None)
        if watched is not None:
            self._watch.forget(watched)
        await member.close()

    def create(self, settings: MemberSettings, name: str | None, beginning: Beginning | None) -> Consumer:
        """A member that waits for its client's next request."""
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
        """The consumer, which has been asked for just now and therefore lives on."""
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
        """Whoever waits for records gets what there is: the gateway is about to stop."""
        for member in self._members:
            member.wake()

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        await asyncio.gather(*(member.close() for member in self._members), *self._leaving, return_exceptions=True)
