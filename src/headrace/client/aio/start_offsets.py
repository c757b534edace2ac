"""Start offsets of consumers: chosen so that no record is missed and no committed offset is moved backwards."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.client.aio.client import Cluster, CoordinatorCache
from headrace.client.aio.consumer import Begin, GroupConsumerConfig, PartitionKey
from headrace.client.aio.fetch import EARLIEST, LATEST, offsets_at
from headrace.client.aio.groups import committed

# One request per partition; this many at a time use a small part of the connections to a broker.
REQUESTS_AT_ONCE = 32
_NOTHING = -1


class GroupBeginning:
    """Start offsets of an assignment: the highest of committed offset, last seen by the client, and last sent to it.

    The client has seen the records before that offset or is about to receive them on its connection. Only what it has
    seen is committed and, for a group that starts at the latest offset, that offset.
    """

    def __init__(
        self,
        coordinators: CoordinatorCache,
        group: str,
        *,
        latest: bool,
        committed_only: bool,
        seen: Mapping[PartitionKey, int] | None = None,
        sent: Callable[[PartitionKey], int] = lambda _: _NOTHING,
    ) -> None:
        self._coordinators, self._group = coordinators, group
        self._latest, self._committed_only = latest, committed_only
        self._seen, self._sent = seen or {}, sent

    async def __call__(self, places: Sequence[PartitionKey]) -> Begin:
        group_has = await self._committed(places)
        ends = await self._ends([place for place in places if self._seen.get(place, _NOTHING) > group_has[place]])
        # An event id from before the topic was recreated may lie beyond the log end: the records there are unseen.
        commit = {place: self._seen[place] for place, end in ends.items() if self._seen[place] <= end}
        begin = {place: max(group_has[place], commit.get(place, _NOTHING), self._sent(place)) for place in places}
        fresh = [place for place, at in begin.items() if at == _NOTHING]
        if self._latest:
            latest = await self._ends(fresh, committed_only=self._committed_only)
            begin, commit = begin | latest, commit | latest  # otherwise a reconnect would find a later end
        else:
            begin |= dict.fromkeys(fresh, EARLIEST)
        return Begin(begin, commit)

    async def _committed(self, places: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        asked: dict[str, list[int]] = {}
        for topic, partition in places:
            asked.setdefault(topic, []).append(partition)
        found = await committed(self._coordinators, self._group, asked) if asked else []
        return dict.fromkeys(places, _NOTHING) | {(one.topic, one.partition): one.offset for one in found}

    async def _ends(self, places: Sequence[PartitionKey], *, committed_only: bool = False) -> dict[PartitionKey, int]:
        return await offsets_of(self._coordinators.cluster, places, LATEST, committed_only=committed_only)


async def topic_beginning(
    cluster: Cluster, topic: str, count: int, seen: Mapping[PartitionKey, int], settings: GroupConsumerConfig
) -> list[int]:
    """Returns for each partition the offset after what the client has seen, or the start offset of a new client.

    A partition that the client's event id does not name was added after that id was created: it is read from its
    start.
    """
    places = [(topic, partition) for partition in range(count)]
    when = LATEST if settings.offset_reset == "latest" and not seen else EARLIEST
    unseen = [place for place in places if place not in seen]
    found = await offsets_of(cluster, unseen, when, committed_only=settings.committed_only)
    return [seen[place] if place in seen else found[place] for place in places]


async def offsets_of(
    cluster: Cluster, places: Sequence[PartitionKey], when: int, *, committed_only: bool
) -> dict[PartitionKey, int]:
    room = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def ask(place: PartitionKey) -> int:
        topic, partition = place

        async def attempt() -> int:
            return (await offsets_at(cluster, topic, [partition], when, committed_only=committed_only))[partition]

        async with room:
            return await cluster.patiently(attempt)

    asking: list[Awaitable[int]] = [ask(place) for place in places]
    return dict(zip(places, await asyncio.gather(*asking), strict=True))
