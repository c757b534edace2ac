"""Moving the offsets of a group that nobody uses right now. Blocking; errors leave as exceptions."""

from typing import TYPE_CHECKING, NamedTuple

from headrace.client import admin as cluster
from headrace.client.refusals import Refused
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]
MEMBERS_ARE_THERE = ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION")


class Wish(NamedTuple):
    """Where to: exactly one of these."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    by: int | None = None


class GroupHasMembers(Refused):
    def __init__(self, group: str) -> None:
        super().__init__(ErrorCode.NON_EMPTY_GROUP, f"{group} has members, who commit their own offsets")


def targets(
    admin: "AdminClient", places: list[Place], before: dict[Place, int], wish: Wish, timeout_s: float
) -> dict[Place, int]:
    """Where each partition goes, always inside what there is to read."""
    starts, ends = _offsets_at(admin, places, "earliest", timeout_s), _offsets_at(admin, places, "latest", timeout_s)
    places = [place for place in places if place in starts and place in ends]
    if wish.by is not None:
        wished = {place: before.get(place, starts[place]) + wish.by for place in places}
    elif wish.earliest:
        wished = starts
    elif wish.latest:
        wished = ends
    elif wish.offset is not None:
        wished = dict.fromkeys(places, wish.offset)
    else:
        found = _offsets_at(admin, places, wish.time_ms or 0, timeout_s)
        # No record is that young: the next one to come will be.
        wished = {place: offset if (offset := found.get(place, -1)) >= 0 else ends[place] for place in places}
    return {place: min(max(wished[place], starts[place]), ends[place]) for place in places}


def _offsets_at(admin: "AdminClient", places: list[Place], when: str | int, timeout_s: float) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for topic in sorted({topic for topic, _ in places}):
        numbers = [number for name, number in places if name == topic]
        for number, offset in cluster.list_offsets(admin, topic, numbers, when, timeout_s).items():
            found[(topic, number)] = offset
    return found


def store(admin: "AdminClient", group: str, offsets: dict[Place, int], timeout_s: float) -> None:
    """Commit them as an administrator, who is no member; the broker takes that only while the group has none."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    request = [ConsumerGroupTopicPartitions(group, wanted)]
    (future,) = admin.alter_consumer_group_offsets(request, request_timeout=timeout_s).values()
    try:
        result = future.result()
    except KafkaException as error:
        if error.args[0].name() in MEMBERS_ARE_THERE:
            raise GroupHasMembers(group) from error
        raise
    for one in result.topic_partitions:
        if one.error is not None:
            if one.error.name() in MEMBERS_ARE_THERE:
                raise GroupHasMembers(group)
            raise Refused(one.error.code(), f"{one.topic}-{one.partition}: {one.error.str()}")
