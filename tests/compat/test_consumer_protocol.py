"""Groups of the new protocol with a real client: librdkafka with `group.protocol=consumer`."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker

SECONDS_MAX = 30.0
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=False, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:8]}"


@pytest.fixture
def consumers(broker: LocalBroker, group: str) -> Iterator[Callable[..., Consumer]]:
    started: list[Consumer] = []

    def start(*topics: str, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **settings,
            }
        )
        started.append(consumer)
        consumer.subscribe(list(topics))
        return consumer

    yield start
    for consumer in started:
        consumer.close()


def admin(broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def create(broker: LocalBroker, partitions: int, prefix: str = "t") -> str:
    name = f"{prefix}-{uuid4().hex[:8]}"
    client = admin(broker)
    client.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS_MAX)
    return name


def fill(broker: LocalBroker, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(partitions * each):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(SECONDS_MAX) == 0


def until(done: Callable[[], bool], *polled: Consumer) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not done():
        assert time.monotonic() < deadline, "it happens in time"
        for consumer in polled:
            consumer.poll(0.05)


# A commit that a rebalance overtakes: the member polls, learns its new generation or epoch, and commits again.
OVERTAKEN = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH)


def commit(consumer: Consumer, offset: int, *polled: Consumer) -> None:
    """Commits the offset for each partition that the consumer owns, while it and others are polled."""

    def is_committed() -> bool:
        places = [TopicPartition(*place, offset) for place in owned(consumer)]
        try:
            rows = consumer.commit(offsets=places, asynchronous=False) if places else []
        except KafkaException as error:
            if error.args[0].code() not in OVERTAKEN:
                raise
            return False
        assert [row.error for row in rows if row.error is not None] == []
        return bool(places)

    until(is_committed, consumer, *polled)


def committed(consumer: Consumer, topic: str, partitions: int) -> list[int]:
    """The group's committed offsets, while the consumer is polled."""
    offsets: list[int] = []

    def is_known() -> bool:
        places = [TopicPartition(topic, index) for index in range(partitions)]
        try:
            offsets[:] = [place.offset for place in consumer.committed(places, timeout=SECONDS_MAX / 3)]
        except KafkaException as error:
            # librdkafka had no connection to the coordinator on which to send the request.
            if error.args[0].code() != KafkaError._TIMED_OUT_QUEUE:
                raise
            return False
        return True

    until(is_known, consumer)
    return offsets


def owned(consumer: Consumer) -> set[tuple[str, int]]:
    return {(place.topic, place.partition) for place in consumer.assignment()}


def test_members_share_and_take_over(broker: LocalBroker, consumers: Callable[..., Consumer]) -> None:
    topic = create(broker, 4)
    first = consumers(topic)
    until(lambda: len(owned(first)) == 4, first)
    second, third = consumers(topic), consumers(topic)
    everybody = (first, second, third)
    until(lambda: sorted(len(owned(one)) for one in everybody) == [1, 1, 2], *everybody)
    assert len(set().union(*map(owned, everybody))) == 4
    second.close()
    until(lambda: len(owned(first)) == len(owned(third)) == 2, first, third)


def test_a_commit_is_where_the_next_member_begins(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str
) -> None:
    topic = create(broker, 1)
    fill(broker, topic, 1, 10)
    first = consumers(topic)
    until(lambda: first.position([TopicPartition(topic, 0)])[0].offset >= 4, first)
    commit(first, 4)
    first.close()
    second = consumers(topic)
    message = second.poll(SECONDS_MAX)
    assert message is not None
    assert message.value() == b"4"


def test_an_expression_finds_topics_that_come_later(broker: LocalBroker, consumers: Callable[..., Consumer]) -> None:
    pytest.importorskip("re2", reason="expressions are matched by google-re2")
    prefix = f"r{uuid4().hex[:8]}"
    topic = create(broker, 1, prefix)
    consumer = consumers(f"^{prefix}-.*")
    until(lambda: owned(consumer) == {(topic, 0)}, consumer)
    later = create(broker, 2, prefix)
    until(lambda: owned(consumer) == {(topic, 0), (later, 0), (later, 1)}, consumer)


def test_a_static_member_comes_back_to_its_partitions(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str
) -> None:
    topic = create(broker, 2)
    first = consumers(topic, **{"group.instance.id": "one"})
    second = consumers(topic, **{"group.instance.id": "two"})
    until(lambda: len(owned(first)) == len(owned(second)) == 1, first, second)
    had = owned(first)
    first.close()
    again = consumers(topic, **{"group.instance.id": "one"})
    until(lambda: owned(again) == had, again, second)
    assert len(described(broker, group).members) == 2


def described(broker: LocalBroker, group: str) -> Any:
    client = admin(broker)
    return client.describe_consumer_groups([group])[group].result(SECONDS_MAX)


def test_a_group_config_shortens_the_session(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str
) -> None:
    topic = create(broker, 1)
    described(broker, group)  # looks for the coordinator, which is there from now on
    _alter_group(broker, group, "consumer.session.timeout.ms", "500")
    silent = _join_silently(broker, group, topic)
    assert silent.error_code.value == 0
    consumer = consumers(topic)
    until(lambda: owned(consumer) == {(topic, 0)}, consumer)


def _alter_group(broker: LocalBroker, group: str, name: str, value: str) -> None:
    """By hand: the client has no name for groups among its resource types."""
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
    from kio.static.primitive import i8

    from headrace.client.sync.transport import Connection

    config = AlterableConfig(name=name, config_operation=i8(0), value=value)
    resource = AlterConfigsResource(resource_type=i8(32), resource_name=group, configs=(config,))
    with Connection("127.0.0.1", broker.port, SECONDS_MAX) as connection:
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        (row,) = connection.call(request, IncrementalAlterConfigsResponse).responses
    assert row.error_code.value == 0, row


def _join_silently(broker: LocalBroker, group: str, topic: str) -> Any:
    """A member that joins, as older clients do it, and is not heard of again."""
    from datetime import timedelta

    from kio.schema.consumer_group_heartbeat.v0.request import ConsumerGroupHeartbeatRequest
    from kio.schema.consumer_group_heartbeat.v0.response import ConsumerGroupHeartbeatResponse
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32, i32Timedelta

    from headrace.client.sync.transport import Connection

    request = ConsumerGroupHeartbeatRequest(
        group_id=GroupId(group),
        member_id="",
        member_epoch=i32(0),
        rebalance_timeout=i32Timedelta.parse(timedelta(minutes=5)),
        subscribed_topic_names=(TopicName(topic),),
        topic_partitions=(),
    )
    with Connection("127.0.0.1", broker.port, SECONDS_MAX) as connection:
        reply = connection.call(request, ConsumerGroupHeartbeatResponse)
    assert reply.member_id, reply.error_message
    return reply


def test_a_member_that_is_behind_its_epoch_cannot_commit(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str
) -> None:
    topic = create(broker, 1)
    consumer = consumers(topic)
    until(lambda: len(owned(consumer)) == 1, consumer)
    stranger = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
    with pytest.raises(KafkaException) as refused:
        stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH)
    stranger.close()


def test_members_go_on_after_the_broker_was_killed(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str
) -> None:
    topic = create(broker, 2)
    fill(broker, topic, 2, 5)
    first, second = consumers(topic), consumers(topic)
    until(lambda: len(owned(first)) == len(owned(second)) == 1, first, second)
    for consumer in (first, second):
        commit(consumer, 3, first, second)
    members = {member.member_id for member in described(broker, group).members}
    before = owned(first), owned(second)
    for _ in range(2):
        broker.kill()
        broker.restart()
        fill(broker, topic, 2, 1)
        until(lambda: {one.member_id for one in described(broker, group).members} == members, first, second)
        assert (owned(first), owned(second)) == before, "nobody had to give anything up"
    assert committed(first, topic, 2) == [3, 3]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_it_runs(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str, strategy: str
) -> None:
    topic = create(broker, 4)
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6000,
    }
    old = [consumers(topic, **classic), consumers(topic, **classic)]
    until(lambda: [len(owned(one)) for one in old] == [2, 2], *old)
    assert described(broker, group).type.name == "CLASSIC"

    new = consumers(topic)
    until(lambda: sorted(len(owned(one)) for one in (*old, new)) == [1, 1, 2], *old, new)
    assert described(broker, group).type.name == "CONSUMER"
    for consumer in (*old, new):
        commit(consumer, 1, *old, new)

    for consumer in old:
        consumer.close()
    until(lambda: len(owned(new)) == 4, new)
    again = consumers(topic, **classic)
    until(lambda: len(owned(again)) == len(owned(new)) == 2, again, new)
    new.close()
    until(lambda: len(owned(again)) == 4, again)
    assert described(broker, group).type.name == "CLASSIC", "and back again"
    assert committed(again, topic, 4) == [1, 1, 1, 1]


def test_a_group_that_nobody_uses_takes_the_protocol_of_whoever_comes_next(
    broker: LocalBroker, consumers: Callable[..., Consumer], group: str
) -> None:
    topic = create(broker, 1)
    for protocol in ("classic", "consumer", "classic"):
        consumer = consumers(topic, **{"group.protocol": protocol})
        until(lambda consumer=consumer: len(owned(consumer)) == 1, consumer)
        commit(consumer, 1)
        assert described(broker, group).type.name == protocol.upper()
        consumer.close()
