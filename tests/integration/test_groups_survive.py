"""Groups and offsets after `kill -9`: what was acknowledged is there, and members go on as if nothing had happened."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.testing import LocalBroker
from tests import patience

SECONDS_MAX = 30.0
KILLS = 4


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=False, settings={"group.initial.rebalance.delay.ms": "0"}) as started:
        yield started


def client(broker: LocalBroker, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
        **more,
    }


def produce(broker: LocalBroker, values: range) -> None:
    producer = Producer(client(broker))
    for value in values:
        producer.produce("t", str(value).encode())
    assert producer.flush(SECONDS_MAX) == 0


def until(condition: Callable[[], bool], what: str) -> None:
    patience.until(condition, what, SECONDS_MAX)


def test_an_acknowledged_commit_is_there_after_a_kill(broker: LocalBroker) -> None:
    produce(broker, range(1))
    consumer = Consumer(client(broker, **{"group.id": "g"}))
    for kill in range(KILLS):
        for offset in range(10 * kill, 10 * kill + 10):
            place = TopicPartition("t", 0, offset + 1, metadata=f"note {offset}")
            (row,) = consumer.commit(offsets=[place], asynchronous=False)
            assert row.error is None
        broker.kill()
        broker.restart()
        found: list[TopicPartition] = []

        def committed(found: list[TopicPartition] = found) -> bool:
            try:
                found[:] = consumer.committed([TopicPartition("t", 0)], timeout=SECONDS_MAX)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                return False
            return found[0].error is None

        until(committed, "the coordinator is back")
        assert (found[0].offset, found[0].metadata) == (10 * kill + 10, f"note {10 * kill + 9}")
    consumer.close()


def test_members_go_on_in_their_generation(broker: LocalBroker) -> None:
    rebalances = []
    consumer = Consumer(
        client(
            broker,
            **{
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
            },
        )
    )
    produce(broker, range(10))
    consumer.subscribe(["t"], on_assign=lambda _, partitions: rebalances.append(len(partitions)))
    values: list[int] = []

    def read(count: int) -> Callable[[], bool]:
        def enough() -> bool:
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                values.append(int(record.value()))
            return len(values) >= count

        return enough

    until(read(10), "everything is read")
    for kill in range(1, KILLS):
        consumer.commit(asynchronous=False)
        broker.kill()
        broker.restart()
        produce(broker, range(10 * kill, 10 * kill + 10))
        until(read(10 * kill + 10), "reading goes on")
    consumer.close()
    assert sorted(values) == list(range(10 * KILLS)), "nothing lost, nothing twice"
    assert len(rebalances) == 1, "the group was stable and still is"
