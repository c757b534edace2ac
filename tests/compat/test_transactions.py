"""Transactions with real clients: readers of committed data see exactly what was committed."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from headrace.testing import LocalBroker

SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def transactional() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def fresh(word: str) -> str:
    return f"{word}-{uuid4().hex[:8]}"


def confluent_producer(broker: LocalBroker, transactional_id: str, **settings: Any) -> Any:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **settings}
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def create(broker: LocalBroker, topic: str, partitions: int = 2) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS_MAX)


def read(broker: LocalBroker, topic: str, *, committed: bool = True, partitions: int = 2) -> list[bytes]:
    """Everything that can be read now, partition by partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": fresh("never-joined"),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    ended: set[int] = set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, "the end is reached in time"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            else:
                found[message.partition()].append(message.value())
    finally:
        consumer.close()
    return [value for index in range(partitions) for value in found[index]]


def test_rule_33_readers_of_committed_data_see_exactly_the_committed_records(transactional: LocalBroker) -> None:
    topic = fresh("orders")
    create(transactional, topic)
    producer = confluent_producer(transactional, fresh("shop"))
    for number in range(6):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, f"{number}-{partition}", partition=partition)
        assert producer.flush(SECONDS_MAX) == 0
        if number % 2:
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
    everything = [[f"{number}-{partition}".encode() for number in range(6)] for partition in range(2)]
    assert read(transactional, topic) == everything[0][::2] + everything[1][::2]
    assert read(transactional, topic, committed=False) == everything[0] + everything[1]


def test_rule_08_an_open_transaction_is_not_read_and_nothing_behind_it_either(transactional: LocalBroker) -> None:
    from confluent_kafka import Producer

    topic = fresh("held-back")
    create(transactional, topic, 1)
    open_one = confluent_producer(transactional, fresh("slow"))
    open_one.begin_transaction()
    open_one.produce(topic, "open")
    open_one.flush(SECONDS_MAX)
    plain = Producer({"bootstrap.servers": transactional.bootstrap})
    plain.produce(topic, "behind")
    plain.flush(SECONDS_MAX)
    assert read(transactional, topic, partitions=1) == []
    assert read(transactional, topic, partitions=1, committed=False) == [b"open", b"behind"]
    open_one.commit_transaction(SECONDS_MAX)
    assert read_until(transactional, topic, 2) == [b"open", b"behind"]


def read_until(broker: LocalBroker, topic: str, count: int) -> list[bytes]:
    """The markers of a committed transaction may be a moment behind its commit."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": fresh("never-joined"), "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:
        while len(values) < count:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"{len(values)} of {count} records arrived"
            assert message.error() is None, message.error()
            values.append(message.value())
    finally:
        consumer.close()
    return values


def test_rule_10_a_second_producer_of_the_same_id_fences_the_first(transactional: LocalBroker) -> None:
    from confluent_kafka import KafkaException

    topic, name = fresh("fenced"), fresh("twin")
    create(transactional, topic, 1)
    zombie = confluent_producer(transactional, name)
    zombie.begin_transaction()
    zombie.produce(topic, "from the zombie")
    zombie.flush(SECONDS_MAX)
    heir = confluent_producer(transactional, name)
    with pytest.raises(KafkaException):
        zombie.commit_transaction(SECONDS_MAX)
    heir.begin_transaction()
    heir.produce(topic, "from the heir")
    heir.commit_transaction(SECONDS_MAX)
    assert read_until(transactional, topic, 1) == [b"from the heir"]


def test_rule_14_a_transaction_that_nobody_ends_is_aborted_at_its_timeout(transactional: LocalBroker) -> None:
    from confluent_kafka import Producer

    topic = fresh("abandoned")
    create(transactional, topic, 1)
    lost = confluent_producer(transactional, fresh("lost"), **{"transaction.timeout.ms": 1000})
    lost.begin_transaction()
    lost.produce(topic, "never ended")
    lost.flush(SECONDS_MAX)
    plain = Producer({"bootstrap.servers": transactional.bootstrap})
    plain.produce(topic, "behind")
    plain.flush(SECONDS_MAX)
    assert read_until(transactional, topic, 1) == [b"behind"]


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_count_once_their_transaction_is_committed(transactional: LocalBroker, commits: bool) -> None:
    from confluent_kafka import Consumer, TopicPartition

    source, target, group = fresh("source"), fresh("target"), fresh("group")
    create(transactional, source, 1)
    create(transactional, target, 1)
    producer = confluent_producer(transactional, fresh("copier"))
    producer.begin_transaction()
    producer.produce(source, "one")
    producer.commit_transaction(SECONDS_MAX)
    settings = {
        "bootstrap.servers": transactional.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([source])
    message = consumer.poll(SECONDS_MAX)
    assert message is not None
    assert message.error() is None
    producer.begin_transaction()
    producer.produce(target, message.value())
    place = TopicPartition(source, 0, message.offset() + 1)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), SECONDS_MAX)
    if commits:
        producer.commit_transaction(SECONDS_MAX)
    else:
        producer.abort_transaction(SECONDS_MAX)
    (found,) = consumer.committed([TopicPartition(source, 0)], SECONDS_MAX)
    consumer.close()
    assert found.offset == (1 if commits else -1001)


def test_kafka_python_commits_and_aborts(transactional: LocalBroker) -> None:
    from kafka import KafkaProducer

    topic = fresh("python")
    create(transactional, topic, 1)
    producer = KafkaProducer(bootstrap_servers=transactional.bootstrap, transactional_id=fresh("pure"), acks="all")
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, str(number).encode()).get(SECONDS_MAX)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    assert read_until(transactional, topic, 2) == [b"0", b"2"]


async def test_aiokafka_commits_and_aborts(transactional: LocalBroker) -> None:
    from aiokafka import AIOKafkaProducer

    topic = fresh("async")
    create(transactional, topic, 1)
    producer = AIOKafkaProducer(bootstrap_servers=transactional.bootstrap, transactional_id=fresh("aio"))
    async with producer:
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, str(number).encode())
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    assert read_until(transactional, topic, 2) == [b"0", b"2"]


def test_the_brokers_own_topics_are_not_for_clients(transactional: LocalBroker) -> None:
    from confluent_kafka import KafkaError, Producer

    confluent_producer(transactional, fresh("any"))
    errors: list[int] = []
    producer = Producer({"bootstrap.servers": transactional.bootstrap})
    producer.produce("__transaction_state", "nonsense", on_delivery=lambda error, _: errors.append(error.code()))
    producer.flush(SECONDS_MAX)
    assert errors == [KafkaError.TOPIC_EXCEPTION]
