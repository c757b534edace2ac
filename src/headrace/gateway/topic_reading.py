"""A reader of a whole topic, without a group, also of the partitions that are added while it reads."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from headrace.client.beginning import offsets_of
from headrace.client.cluster import TOPIC_TRUSTED_S
from headrace.client.factory import BrokerUnreachable
from headrace.client.member import Member
from headrace.client.member_settings import MemberSettings
from headrace.client.reading import EARLIEST
from headrace.client.refusals import Refused, Unanswered
from headrace.gateway.event_ids import TopicPositions
from headrace.gateway.problems import Problem
from headrace.gateway.services import Services

# The ids of the topic's events name every partition, and have to fit into the head of a request.
TOPIC_STREAM_PARTITIONS_MAX = 1_000


@asynccontextmanager
async def whole_topic(
    client: Services, settings: MemberSettings, positions: TopicPositions, offsets: Sequence[int]
) -> AsyncIterator[Member]:
    (topic,) = settings.topics
    places = {(topic, partition): offset for partition, offset in enumerate(offsets)}
    async with client.consumers.joined(settings, places) as member:
        growing = asyncio.create_task(_grow(client, member, topic, positions))
        try:
            yield member
        finally:
            growing.cancel()
            await asyncio.gather(growing, return_exceptions=True)


async def _grow(client: Services, member: Member, topic: str, positions: TopicPositions) -> None:
    while True:
        await asyncio.sleep(TOPIC_TRUSTED_S)
        with suppress(BrokerUnreachable, Refused, Unanswered):  # the next look will do
            count = len((await client.cluster.topic(topic)).partitions)
            if count > TOPIC_STREAM_PARTITIONS_MAX:
                member.fail(too_many_partitions(topic, count))
                return
            await _add_partitions(client, member, topic, positions, count)


def too_many_partitions(topic: str, count: int) -> Problem:
    return Problem(
        422,
        f"{topic} has {count:,} partitions; a stream without a group reads {TOPIC_STREAM_PARTITIONS_MAX:,} at most: "
        "use /groups/{group}/stream",
    )


async def _add_partitions(client: Services, member: Member, topic: str, positions: TopicPositions, count: int) -> None:
    """From their starts: they are younger than the stream."""
    added = [(topic, partition) for partition in range(len(positions), count)]
    if added:
        found = await offsets_of(client.cluster, added, EARLIEST, committed_only=False)
        positions.add([found[place] for place in added])
        member.add(found)
