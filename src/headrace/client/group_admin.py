"""Consumer groups for command-line tools and REST: list, describe, lag, reset offsets.

Blocking functions; they raise on errors.
"""

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client import admin as cluster
from headrace.client.core.errors import KafkaApiError
from headrace.client.librdkafka import make_consumer
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient


# Kafka's state names, by librdkafka's.
_STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
    "ASSIGNING": "Assigning",
    "RECONCILING": "Reconciling",
}
# Fetch limit for reading one record's timestamp; the broker sends a larger record whole all the same.
_PEEK_BYTES = 1024


class GroupRow(NamedTuple):
    group: str
    type: str
    state: str


class GroupView(NamedTuple):
    group: str
    type: str
    state: str
    assignor: str
    coordinator: str
    members: list[dict[str, Any]]


class OffsetView(NamedTuple):
    topic: str
    partition: int
    member: str | None
    committed: int | None
    end: int | None
    lag: int | None
    lag_seconds: float | None


def list_groups(admin: "AdminClient", timeout_s: float) -> list[GroupRow]:
    listed = admin.list_consumer_groups(request_timeout=timeout_s).result()
    if listed.errors and not listed.valid:
        raise listed.errors[0]
    rows = [GroupRow(one.group_id, one.type.name.lower(), state_word(one.state)) for one in listed.valid]
    return sorted(rows)


def state_word(state: Any) -> str:
    return _STATES.get(state.name, str(state.name).capitalize())


def describe_groups(
    admin: "AdminClient", names: list[str], timeout_s: float
) -> "tuple[dict[str, GroupView], dict[str, KafkaError]]":
    done, refused = cluster.outcomes(admin.describe_consumer_groups(names, request_timeout=timeout_s))
    return {name: _view(one) for name, one in done.items()}, refused


def _view(described: Any) -> GroupView:
    node = described.coordinator
    return GroupView(
        described.group_id,
        described.type.name.lower(),
        state_word(described.state),
        described.partition_assignor,
        f"{node.id} ({node.host}:{node.port})" if node is not None else "none",
        [_member(one) for one in described.members],
    )


def _member(member: Any) -> dict[str, Any]:
    partitions = member.assignment.topic_partitions if member.assignment is not None else []
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.host.removeprefix("/"),
        "partitions": sorted(f"{one.topic}-{one.partition}" for one in partitions),
    }


def offsets_of(admin: "AdminClient", bootstrap: str, group: str, timeout_s: float) -> list[OffsetView]:
    """Returns every partition with a committed offset or an assigned member, with its lag in records and seconds."""
    committed = committed_offsets(admin, group, timeout_s)
    owners = _owners(admin, group, timeout_s)
    places = sorted({*committed, *owners})
    ends = end_offsets(admin, places, timeout_s)
    rows, unread = [], {}
    for place in places:
        offset, end = committed.get(place), ends.get(place)
        lag = max(end - offset, 0) if offset is not None and end is not None else None
        if lag and offset is not None:
            unread[place] = offset
        rows.append(OffsetView(*place, owners.get(place), offset, end, lag, 0.0 if lag == 0 else None))
    ages = _ages(bootstrap, unread, timeout_s)
    return [row._replace(lag_seconds=ages.get((row.topic, row.partition), row.lag_seconds)) for row in rows]


def committed_offsets(admin: "AdminClient", group: str, timeout_s: float) -> dict[tuple[str, int], int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    (future,) = admin.list_consumer_group_offsets(asked, request_timeout=timeout_s).values()
    return {
        (one.topic, one.partition): one.offset
        for one in future.result().topic_partitions or []
        if one.offset >= 0 and one.error is None
    }


def _owners(admin: "AdminClient", group: str, timeout_s: float) -> dict[tuple[str, int], str]:
    done, _ = cluster.outcomes(admin.describe_consumer_groups([group], request_timeout=timeout_s))
    return {
        (place.topic, place.partition): member.member_id
        for described in done.values()
        for member in described.members
        for place in (member.assignment.topic_partitions if member.assignment is not None else [])
    }


def end_offsets(admin: "AdminClient", places: list[tuple[str, int]], timeout_s: float) -> dict[tuple[str, int], int]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    return {
        (topic, partition): offset
        for topic, partitions in by_topic.items()
        for partition, offset in cluster.list_offsets(admin, topic, partitions, "latest", timeout_s).items()
    }


def _ages(bootstrap: str, unread: dict[tuple[str, int], int], timeout_s: float) -> dict[tuple[str, int], float]:
    """Returns the age in seconds of the record at each offset, reading one of each without joining a group."""
    if not unread:
        return {}
    from confluent_kafka import TopicPartition

    consumer = make_consumer(
        bootstrap, {"fetch.message.max.bytes": _PEEK_BYTES, "queued.min.messages": 1, "auto.offset.reset": "earliest"}
    )
    ages: dict[tuple[str, int], float] = {}
    deadline = time.monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in unread.items()])
        while len(ages) < len(unread) and time.monotonic() < deadline:
            message = consumer.poll(max(deadline - time.monotonic(), 0))
            if message is None or message.error():
                continue
            place = (message.topic() or "", message.partition() or 0)
            if place not in ages:
                kind, timestamp_ms = message.timestamp()
                ages[place] = max(time.time() - timestamp_ms / 1000, 0.0) if kind else 0.0
                consumer.pause([TopicPartition(*place)])
    finally:
        consumer.close()
    return ages


PartitionKey = tuple[str, int]
MEMBERS_ARE_THERE = ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION")


class OffsetReset(NamedTuple):
    """Target of an offset reset; exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    by: int | None = None


class GroupNotEmptyError(KafkaApiError):
    def __init__(self, group: str) -> None:
        super().__init__(ErrorCode.NON_EMPTY_GROUP, f"{group} has members, who commit their own offsets")


def targets(
    admin: "AdminClient",
    places: list[PartitionKey],
    before: dict[PartitionKey, int],
    wish: OffsetReset,
    timeout_s: float,
) -> dict[PartitionKey, int]:
    """Returns the target offset of each partition, bounded by its start and end offsets."""
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
        # No record has that timestamp or a later one: use the end offset.
        wished = {place: offset if (offset := found.get(place, -1)) >= 0 else ends[place] for place in places}
    return {place: min(max(wished[place], starts[place]), ends[place]) for place in places}


def _offsets_at(
    admin: "AdminClient", places: list[PartitionKey], when: str | int, timeout_s: float
) -> dict[PartitionKey, int]:
    found: dict[PartitionKey, int] = {}
    for topic in sorted({topic for topic, _ in places}):
        numbers = [number for name, number in places if name == topic]
        for number, offset in cluster.list_offsets(admin, topic, numbers, when, timeout_s).items():
            found[(topic, number)] = offset
    return found


def store(admin: "AdminClient", group: str, offsets: dict[PartitionKey, int], timeout_s: float) -> None:
    """Commits offsets without a membership; the broker accepts that only while the group has no members."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    request = [ConsumerGroupTopicPartitions(group, wanted)]
    (future,) = admin.alter_consumer_group_offsets(request, request_timeout=timeout_s).values()
    try:
        result = future.result()
    except KafkaException as error:
        if error.args[0].name() in MEMBERS_ARE_THERE:
            raise GroupNotEmptyError(group) from error
        raise
    for one in result.topic_partitions:
        if one.error is not None:
            if one.error.name() in MEMBERS_ARE_THERE:
                raise GroupNotEmptyError(group)
            raise KafkaApiError(one.error.code(), f"{one.topic}-{one.partition}: {one.error.str()}")
