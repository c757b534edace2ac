"""Kafka's transactional copiers copy exactly once while they and the broker are killed again and again."""

import random
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.tools import kafka_classpath
from headrace.testing import LocalBroker
from tests.compat.test_transactions import create
from tests.interop.background import Background
from tests.interop.records import read_messages

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS = 2  # one copier each, as Kafka's own test of this has it
RECORDS = 60_000  # ten seconds of copying: the kills are to come into the midst of it, also where one gets ahead
TRANSACTION = 20  # records in each transaction
KILLS = 6
COPIER_KILLS = KILLS // 2  # they come first, then the broker's
# A copier asks for its last committed offset before it fences its predecessor, and gets it when the transaction that
# the predecessor left open has timed out.
TIMEOUT_MS = 10_000
# Of the last copiers, which have no successors to wait. Much longer than a broker is away, however busy the machine:
# a copier whose own transaction times out ends.
LAST_TIMEOUT_MS = 60_000
LOOK_OFTEN = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def copier(broker: LocalBroker, partition: int, timeout_ms: int) -> Background:
    """Copies from where the last committed transaction ended, to what is the end now, and aborts some at random."""
    return Background(
        kafka_classpath(), COPIER, "--broker-list", broker.bootstrap, "--enable-random-aborts",
        "--input-topic", "source", "--input-partition", str(partition), "--output-topic", "target",
        "--transactional-id", f"copier-{partition}", "--consumer-group", "copiers", "--use-group-metadata",
        "--transaction-size", str(TRANSACTION), "--transaction-timeout", str(timeout_ms),
    )  # fmt: skip


def fill(broker: LocalBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 0, "log_level": 0})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce("source", b"%d" % number, partition=partition)
    assert producer.flush(60) == 0


def copied(broker: LocalBroker, partition: int) -> list[int]:
    return [int(message.value()) for message in read_messages(broker.bootstrap, "target", partition, "read_committed")]


def consumed(one: Background) -> int:
    """How far it has come since it was started."""
    return max((event.get("consumed", 0) for event in one.events), default=0)


def is_done(one: Background) -> bool:
    return any(event.get("remaining") == 0 for event in one.events)


def wait_for_progress(one: Background) -> None:
    """So that every kill meets it at work, and a transaction that the last kill held up had time to end."""
    known = consumed(one)
    one.wait_for(lambda: consumed(one) > known or is_done(one))


def test_copies_are_exact_and_in_order_although_copiers_and_broker_are_killed(tmp_path: Path) -> None:
    chance = random.Random(1)
    with LocalBroker(data_dir=tmp_path / "data", settings=LOOK_OFTEN) as broker:
        for topic in ("source", "target"):
            create(broker, topic, PARTITIONS)
        fill(broker)
        copiers = [copier(broker, partition, TIMEOUT_MS) for partition in range(PARTITIONS)]
        try:
            for number in range(KILLS):
                for one in copiers:
                    wait_for_progress(one)
                threading.Event().wait(chance.uniform(0, 0.3))
                if number < COPIER_KILLS:
                    # All at once: while one waits for its predecessor's transaction to end, another would get done.
                    for one in copiers:
                        one.close()
                    timeout_ms = LAST_TIMEOUT_MS if number == COPIER_KILLS - 1 else TIMEOUT_MS
                    copiers = [copier(broker, partition, timeout_ms) for partition in range(PARTITIONS)]
                else:
                    broker.kill()
                    broker.restart()
            for one in copiers:
                one.wait(timeout=180)
        finally:
            for one in copiers:
                one.close()
        for partition in range(PARTITIONS):
            assert copied(broker, partition) == list(range(RECORDS))
