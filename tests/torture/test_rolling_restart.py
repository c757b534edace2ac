"""All nodes of a cluster are restarted, one after the other, and no client notices."""

import threading
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalCluster
from tests.patience import awaited, until
from tests.torture.plan import kills

TOPIC, PARTITIONS = "rolling", 6
SECONDS_MAX = 60.0
PAUSE_S = 0.002  # between two records: hundreds a second, so that a gap would show


class Load(threading.Thread):
    """A producer with librdkafka's own settings; keeps what was acknowledged, when, and what went wrong."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="load")
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._stopping = threading.Event()
        self.acked: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.acked_s: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(PAUSE_S):
            place = number % PARTITIONS
            self._producer.produce(TOPIC, str(number), partition=place, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush(SECONDS_MAX)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acked_s.append(time.monotonic())
        self.acked[message.partition()].append(int(message.value()))

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def longest_gap_s(self) -> float:
        return max(after - before for before, after in zip(self.acked_s, self.acked_s[1:], strict=False))


class Reading(threading.Thread):
    """A member of a group with librdkafka's own settings."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="reading")
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe([TOPIC])
        self._stopping = threading.Event()
        self.seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
            else:
                self.seen[message.partition() or 0].append(int(message.value() or b""))
        self._consumer.close()

    def wait_for(self, wanted: dict[int, list[int]]) -> None:
        def has_all(seen: dict[int, int]) -> bool:
            return all(seen[place] >= len(values) for place, values in wanted.items())

        awaited(lambda: {place: len(self.seen[place]) for place in wanted}, has_all, "all is read", SECONDS_MAX)

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def wait_until_in_sync(admin: AdminClient) -> None:
    def everybody_is() -> bool:
        topics = admin.list_topics(timeout=SECONDS_MAX).topics.values()
        return all(len(one.isrs) == len(one.replicas) for topic in topics for one in topic.partitions.values())

    until(everybody_is, "everybody is in sync again", SECONDS_MAX)


@pytest.mark.slow
def test_clients_do_not_notice_that_all_nodes_are_restarted() -> None:
    rounds = kills(1)
    settings = {"min.insync.replicas": "2", "offsets.topic.num.partitions": "4"}
    with LocalCluster(3, memory=False, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(SECONDS_MAX)
        load, reading = Load(cluster.bootstrap), Reading(cluster.bootstrap)
        load.start()
        reading.start()
        try:
            for _ in range(rounds):
                for node_id in cluster.brokers:
                    time.sleep(0.5)  # of undisturbed work, so that a gap is seen
                    cluster.stop(node_id)
                    cluster.restart(node_id)
                    wait_until_in_sync(admin)
        finally:
            load.stop()
            acked = sum(map(len, load.acked.values()))
            print(f"{acked} acknowledged, longest gap {load.longest_gap_s():.2f} s, {rounds} rounds")
        try:
            reading.wait_for(load.acked)
        finally:
            reading.stop()
    assert (load.errors, reading.errors) == ([], [])
    for place, values in load.acked.items():
        assert values == sorted(values), "in the order of sending"
        assert list(dict.fromkeys(reading.seen[place])) == values, "nothing is missing"
