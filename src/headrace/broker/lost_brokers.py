"""Brokers whose connection to this one has just broken: nearly all were killed, and their partitions get other leaders.

A client notices a killed leader as early as the other brokers do. As long as Metadata names that leader, librdkafka
tries it again and requests metadata only a second later; for a partition without a leader it does so after 0.1 s. So
Metadata waits for the election, which takes 0.15 s unless etcd needs a new leader first, and then shows no leader. The
wait is short, because a response that waits holds up the requests behind it on its connection.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from headrace.core.cluster.image import ClusterImage

RESPONSE_S_MAX = 0.25
# Two election timeouts of etcd by default, if its leader was on the same machine, and the brokers' own election.
ELECTION_S_MAX = 3.0


class Lost(NamedTuple):
    epoch: int  # of the broker: one that has registered again is there
    replaced: asyncio.Event
    end: asyncio.TimerHandle


class LostBrokers:
    def __init__(self) -> None:
        self._lost: dict[int, Lost] = {}
        self.node_ids: frozenset[int] = frozenset()

    def add(self, node_id: int, epoch: int, image: ClusterImage) -> None:
        """The connection to this broker has broken. Counts while it leads partitions, for a few seconds at most."""
        if node_id not in self._lost:
            end = asyncio.get_running_loop().call_later(ELECTION_S_MAX, self.remove, node_id)
            self._lost[node_id] = Lost(epoch, asyncio.Event(), end)
            self.node_ids = frozenset(self._lost)
            self.follow(image)

    def remove(self, node_id: int) -> None:
        """The broker responds, or was replaced, or the time is over."""
        lost = self._lost.pop(node_id, None)
        if lost is not None:
            self.node_ids = frozenset(self._lost)
            lost.end.cancel()
            lost.replaced.set()

    def follow(self, image: ClusterImage) -> None:
        """Removes brokers that lead nothing in this image, or that have registered again."""
        for node_id, lost in list(self._lost.items()):
            known = image.brokers.get(node_id)
            if known is None or known.epoch != lost.epoch or not _leads(node_id, image):
                self.remove(node_id)

    async def wait_until_replaced(self, image: ClusterImage, topics: Iterable[str] | None) -> None:
        """Returns at once unless a lost broker leads a partition of these topics, or of any topic if None."""
        names = image.topics if topics is None else topics
        found = [image.topics[name] for name in names if name in image.topics]
        leaders = self._lost.keys() & {state.leader for topic in found for state in topic.partitions}
        with suppress(TimeoutError):
            async with asyncio.timeout(RESPONSE_S_MAX):
                for lost in [self._lost[node_id] for node_id in leaders]:
                    await lost.replaced.wait()

    def close(self) -> None:
        for node_id in list(self._lost):
            self.remove(node_id)


def _leads(node_id: int, image: ClusterImage) -> bool:
    return any(state.leader == node_id for topic in image.topics.values() for state in topic.partitions)
