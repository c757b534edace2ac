"""A worker that copies a topic to another exactly once: reads, writes and commits its offsets in one transaction.

Runs as a process of its own, so that a test can kill it: `python -m tests.integration.copier bootstrap source target`.
Never ends by itself. Whatever goes wrong, it starts over as a new program, as a supervisor would start it again.
"""

import os
import sys
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

GROUP = "copiers"
BATCH = 20
SECONDS_MAX = 10.0
# When every broker is gone, librdkafka forgets what it knew of them and starts from the bootstrap address. Requests to
# the coordinator of a group then wait for the broker that it has forgotten.
CLIENT = {"metadata.recovery.strategy": "none", "log_level": 2}


def consumer_settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "session.timeout.ms": 1000,
        "heartbeat.interval.ms": 200,
        **CLIENT,
    }


def producer_settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        # A new name each time: what a killed worker left open is ended by its timeout, not by its successor.
        "transactional.id": f"copier-{uuid4().hex}",
        "transaction.timeout.ms": 2000,
        "linger.ms": 0,
        **CLIENT,
    }


def copy(bootstrap: str, source: str, target: str) -> None:
    consumer = Consumer(consumer_settings(bootstrap))
    producer = Producer(producer_settings(bootstrap))
    producer.init_transactions(SECONDS_MAX)
    consumer.subscribe([source])
    while True:
        messages = [one for one in consumer.consume(BATCH, 0.2) if not one.error()]
        if messages:
            _copy_batch(consumer, producer, messages, target)


def _copy_batch(consumer: Any, producer: Any, messages: list[Any], target: str) -> None:
    producer.begin_transaction()
    places: dict[tuple[str, int], int] = {}
    for message in messages:
        producer.produce(target, message.value(), message.key(), message.partition())
        places[(message.topic(), message.partition())] = message.offset() + 1
    offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in places.items()]
    try:
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS_MAX)
        producer.commit_transaction(SECONDS_MAX)
    except KafkaException as error:
        if error.args[0].txn_requires_abort():
            producer.abort_transaction(SECONDS_MAX)
        raise


def main() -> None:
    try:
        copy(*sys.argv[1:])
    finally:
        # The consumer is ahead of what counts: a new program goes on from what is committed.
        os.execv(sys.executable, [sys.executable, "-m", "tests.integration.copier", *sys.argv[1:]])


if __name__ == "__main__":
    main()
