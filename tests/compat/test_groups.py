"""Consumer groups of the classic protocol, with the clients that people use."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.compat.client_driver import SECONDS_MAX
from tests.compat.group_members import MEMBERS, ConfluentMember, owners, until
from tests.patience import awaited

RECORDS = 60


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


@pytest.fixture(params=list(MEMBERS))
def member_type(request: pytest.FixtureRequest) -> type[ConfluentMember]:
    return MEMBERS[request.param]  # type: ignore[return-value]


def produce(bootstrap: str, topic: str, values: range, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % partitions)
    assert producer.flush(SECONDS_MAX) == 0


def share(partitions: int, *members: ConfluentMember) -> bool:
    """Whether each partition has one owner, and each member as many partitions as the others."""
    fair = [partitions // len(members)] * len(members)
    return [len(one.assigned) for one in members] == fair and owners(*members) == dict.fromkeys(range(partitions), 1)


def numbers(*members: ConfluentMember) -> list[int]:
    return sorted(int(value) for member in members for value in member.values)


def test_a_group_goes_on_where_it_stopped(
    bootstrap: str, topic: str, group: str, member_type: type[ConfluentMember]
) -> None:
    produce(bootstrap, topic, range(RECORDS))
    first = member_type(bootstrap, group, topic)
    until(lambda: len(first.values) == RECORDS, "everything is read", first)
    first.close()
    produce(bootstrap, topic, range(RECORDS, 2 * RECORDS))
    second = member_type(bootstrap, group, topic)
    until(lambda: len(second.values) >= RECORDS, "the rest is read", second)
    second.close()
    assert numbers(second) == list(range(RECORDS, 2 * RECORDS)), "nothing twice, nothing lost"


def test_members_share_the_partitions_and_take_over_from_each_other(
    bootstrap: str, new_topic: Callable[..., str], group: str, member_type: type[ConfluentMember]
) -> None:
    topic = new_topic(partitions=4)
    first = member_type(bootstrap, group, topic)
    until(lambda: len(first.assigned) == 4, "one member holds all", first)
    second = member_type(bootstrap, group, topic)
    until(lambda: share(4, first, second), "they share", first, second)
    produce(bootstrap, topic, range(RECORDS), partitions=4)
    until(lambda: len(first.values) + len(second.values) >= RECORDS, "everything is read", first, second)
    assert numbers(first, second) == list(range(RECORDS))
    first.close()
    until(lambda: len(second.assigned) == 4, "the other takes over", second)
    second.close()


def test_members_of_different_clients_are_in_one_group(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(partitions=6)
    one = MEMBERS["confluent-kafka"](bootstrap, group, topic, **{"partition.assignment.strategy": "roundrobin"})
    two = MEMBERS["aiokafka"](bootstrap, group, topic)
    until(lambda: share(6, one, two), "they share", one, two)
    one.close()
    two.close()


def test_cooperative_members_keep_what_they_have(bootstrap: str, new_topic: Callable[..., str], group: str) -> None:
    topic = new_topic(partitions=4)
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
    first = ConfluentMember(bootstrap, group, topic, **cooperative)
    until(lambda: len(first.assigned) == 4, "one member holds all", first)
    second = ConfluentMember(bootstrap, group, topic, **cooperative)
    until(lambda: share(4, first, second), "they share", first, second)
    first.close()
    second.close()


def test_a_static_member_that_restarts_disturbs_nobody(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(partitions=4)
    one = ConfluentMember(bootstrap, group, topic, **{"group.instance.id": "one"})
    two = ConfluentMember(bootstrap, group, topic, **{"group.instance.id": "two"})
    until(lambda: share(4, one, two), "they share", one, two)
    before, rebalances = set(two.assigned), one.rebalances
    two.close()  # a static member does not leave: its place is kept until its session ends
    again = ConfluentMember(bootstrap, group, topic, **{"group.instance.id": "two"})
    until(lambda: again.assigned == before, "it has what it had", one, again)
    assert one.rebalances == rebalances
    again.close()
    one.close()


def test_offsets_can_be_committed_without_a_group(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    place = TopicPartition(topic, 0, 7, metadata="a note")
    consumer.assign([TopicPartition(topic, 0)])
    (row,) = consumer.commit(offsets=[place], asynchronous=False)
    assert row.error is None
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=SECONDS_MAX)
    consumer.close()
    assert (found.offset, found.metadata) == (7, "a note")


def test_an_administrator_sees_and_changes_groups(bootstrap: str, admin: AdminClient, topic: str, group: str) -> None:
    produce(bootstrap, topic, range(RECORDS))
    member = ConfluentMember(bootstrap, group, topic)
    until(lambda: len(member.values) == RECORDS, "everything is read", member)
    described = awaited(
        lambda: admin.describe_consumer_groups([group])[group].result(SECONDS_MAX),
        lambda answer: answer.state is ConsumerGroupState.STABLE,
        "the group is stable",
        SECONDS_MAX,
    )
    (shown,) = described.members
    assert [(one.topic, one.partition) for one in shown.assignment.topic_partitions] == [(topic, 0)]
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result(SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    assert (group, ConsumerGroupState.EMPTY) in {(one.group_id, one.state) for one in listed.valid}
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5)])
    admin.alter_consumer_group_offsets([wanted])[group].result(SECONDS_MAX)
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(SECONDS_MAX)
    assert [one.offset for one in offsets.topic_partitions] == [5]
    admin.delete_consumer_groups([group])[group].result(SECONDS_MAX)
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    assert group not in {one.group_id for one in listed.valid}
