"""A flipped bit in the log of a coordinator on a single node: other records are used, or the failure is reported."""

import re
from pathlib import Path

import httpx
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.records.batch import walk
from headrace.testing import LocalBroker
from tests.patience import until

METRICS_URL = re.compile(r"metrics of the broker on (\S+)")
GROUPS = 8
SECONDS_MAX = 30.0
TOPIC = "t"
SETTINGS = {
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def commit(broker: LocalBroker, group: int, offset: int) -> None:
    wanted = ConsumerGroupTopicPartitions(f"group-{group}", [TopicPartition(TOPIC, 0, offset)])
    client = admin(broker)
    [done] = client.alter_consumer_group_offsets([wanted]).values()
    done.result(SECONDS_MAX)


def committed(broker: LocalBroker, group: int) -> int:
    client = admin(broker)
    [found] = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"group-{group}")]).values()
    [place] = found.result(SECONDS_MAX).topic_partitions
    return place.offset


def admin(broker: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def flip_a_bit_in_batch(directory: Path, number: int) -> None:
    file = directory / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    position, header = [*walk(data)][number]
    data[position + header.total_bytes - 1] ^= 1
    file.write_bytes(data)


def test_corrupt_commit_leaves_all_other_groups_usable(tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path / "data", settings=SETTINGS) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(TOPIC, b"x")
        assert producer.flush(SECONDS_MAX) == 0
        for offset in (1, 2):
            for group in range(GROUPS):
                commit(broker, group, offset)
        broker.kill()
        flip_a_bit_in_batch(tmp_path / "data" / "__consumer_offsets-0", GROUPS + 3)
        broker.start()
        assert [committed(broker, group) for group in range(GROUPS)] == [2, 2, 2, 1, 2, 2, 2, 2]
        commit(broker, 3, 3)
        broker.restart()
        assert committed(broker, 3) == 3


def coordinators_check(broker: LocalBroker) -> dict[str, str]:
    url = METRICS_URL.findall(broker.output())[-1].replace("/metrics", "/checks")
    found: dict[str, str] = httpx.get(url, timeout=SECONDS_MAX).json()["checks"]["coordinators"]
    return found


def test_unreadable_transaction_state_is_reported(tmp_path: Path) -> None:
    """A transaction that was prepared in it may be committed already: its coordinator does not guess."""
    with LocalBroker(data_dir=tmp_path / "data", settings={**SETTINGS, "metrics_addr": "127.0.0.1:0"}) as broker:
        clients = [
            {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0} for name in ("one", "two")
        ]
        for client in clients:
            Producer(client).init_transactions(SECONDS_MAX)
        assert coordinators_check(broker)["status"] == "ok"
        broker.kill()
        flip_a_bit_in_batch(tmp_path / "data" / "__transaction_state-0", 0)
        broker.start()
        until(lambda: coordinators_check(broker)["status"] == "degraded", "the coordinator is reported", SECONDS_MAX)
        assert "__transaction_state-0" in coordinators_check(broker)["detail"]
        with pytest.raises(KafkaException):
            Producer(clients[1]).init_transactions(1)
