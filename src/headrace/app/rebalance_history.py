"""Reads a group's rebalance history from its coordinator's partition of the offsets topic.

Used by the command line and passed to the gateway: the record format belongs to `core`, which clients do not import.
"""

import time
from typing import TYPE_CHECKING, Any

from headrace.client import admin as cluster
from headrace.client.librdkafka import make_consumer
from headrace.core.coordinator import CoordinatorRecord, partition_for
from headrace.core.group.rebalance_history import HISTORY_KIND, Rebalanced, decode
from headrace.core.topic import OFFSETS_TOPIC

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

_KIND_BYTES = HISTORY_KIND.to_bytes(2, "big")


def read_history(admin: "AdminClient", bootstrap: str, group: str, timeout_s: float) -> list[dict[str, Any]]:
    """Returns the rebalances, oldest first."""
    topic = admin.list_topics(OFFSETS_TOPIC, timeout=timeout_s).topics[OFFSETS_TOPIC]
    if not topic.partitions:
        return []
    partition = partition_for(group, len(topic.partitions))
    end = cluster.list_offsets(admin, OFFSETS_TOPIC, [partition], "latest", timeout_s).get(partition, 0)
    consumer = make_consumer(bootstrap, {"auto.offset.reset": "earliest"})
    try:
        slots = _slots(consumer, group, partition, end, timeout_s)
    finally:
        consumer.close()
    return [_row(one) for one in sorted(slots.values(), key=lambda one: one.number)]


def _slots(consumer: "Consumer", group: str, partition: int, end: int, timeout_s: float) -> dict[bytes, Rebalanced]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    slots: dict[bytes, Rebalanced] = {}
    consumer.assign([TopicPartition(OFFSETS_TOPIC, partition, OFFSET_BEGINNING)])
    deadline = time.monotonic() + timeout_s
    position = 0
    while position < end and time.monotonic() < deadline:
        message = consumer.poll(max(deadline - time.monotonic(), 0))
        if message is None:
            break
        if message.error():
            break  # end of the partition: only a marker follows the last record
        position = (message.offset() or 0) + 1
        key = message.key() or b""
        if key.startswith(_KIND_BYTES):
            slots.pop(key, None)
            fact = decode(CoordinatorRecord(key, message.value()))
            if isinstance(fact, Rebalanced) and fact.group_id == group:
                slots[key] = fact
    return slots


def _row(one: Rebalanced) -> dict[str, Any]:
    fields = one._asdict()
    del fields["group_id"], fields["is_written"]
    return fields
