"""Detects that subscribed topics were deleted. librdkafka would silently wait for them to be recreated.

One Metadata request every two seconds covers all readers of the process. A topic counts as deleted when it was
missing twice in a row, so that a broker with stale metadata causes no false alarm, or when it has another id: then it
is another topic of the same name.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

from headrace.client.aio.client import ClusterMetadata
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.model.errors import ErrorCode

log = logging.getLogger(__name__)

LOOK_S = 2.0
MISSED_MAX = 2

Tell = Callable[[Exception], None]


class Describing(Protocol):
    """The part of `Cluster` that is used here."""

    async def described(self, names: list[str] | None) -> ClusterMetadata: ...


class MonitoredTopics:
    """A reader's topics. `tell` is called once, when none of them is left."""

    __slots__ = ("ids", "missed", "tell")

    def __init__(self, topics: Iterable[str], tell: Tell) -> None:
        self.ids: dict[str, UUID | None] = dict.fromkeys(topics)
        self.missed = 0
        self.tell = tell

    def look(self, facts: ClusterMetadata) -> bool:
        """Returns False when no topic is left."""
        gone = 0
        for name, known in self.ids.items():
            topic = facts.topics.get(name)
            if topic is None or known not in (None, topic.id):
                gone += 1
            else:
                self.ids[name] = topic.id
        self.missed = self.missed + 1 if gone == len(self.ids) else 0
        return self.missed < MISSED_MAX

    def refusal(self) -> KafkaApiError:
        names = ", ".join(sorted(self.ids))
        return KafkaApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{names} was deleted; no subscribed topic is left: subscribe again"
        )


class TopicDeletionMonitor:
    def __init__(self, cluster: Describing) -> None:
        self._cluster = cluster
        self._watched: set[MonitoredTopics] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, topics: Iterable[str], tell: Tell) -> MonitoredTopics:
        """Calls `tell` with a KafkaApiError when all of the topics are deleted; pass the result to `forget`."""
        watched = MonitoredTopics(topics, tell)
        self._watched.add(watched)
        if self._task is None:
            self._task = asyncio.create_task(self._look_again_and_again())
        return watched

    def forget(self, watched: MonitoredTopics) -> None:
        self._watched.discard(watched)

    async def _look_again_and_again(self) -> None:
        while self._watched:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except (BrokerUnreachable, KafkaApiError, UnknownOutcomeError) as error:
                log.debug("Cannot check whether the subscribed topics exist: %s", error)
        self._task = None

    async def look(self) -> None:
        names = sorted({name for watched in self._watched for name in watched.ids})
        facts = await self._cluster.described(names)
        for watched in list(self._watched):
            # Readers that were added while the request was in flight may have topics that it did not name.
            if watched.ids.keys() <= set(names) and not watched.look(facts):
                self.forget(watched)
                watched.tell(watched.refusal())

    async def close(self) -> None:
        self._watched.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
