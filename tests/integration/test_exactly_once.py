"""Exactly once: workers copy a topic in transactions while workers and the broker are killed.

The output must equal the input: nothing lost, nothing doubled, the order kept in each partition.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from headrace.testing import LocalBroker
from tests.integration.copier import consumer_settings

RECORDS = 600
PARTITIONS = 2
WORKERS = 2
KILLS = 6
SECONDS_MAX = 60.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500"}


class Worker:
    def __init__(self, bootstrap: str) -> None:
        command = [sys.executable, "-m", "tests.integration.copier", bootstrap, "source", "target"]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def workers(bootstrap: str) -> Iterator[list[Worker]]:
    running = [Worker(bootstrap) for _ in range(WORKERS)]
    try:
        yield running
    finally:
        for worker in running:
            worker.kill()


def fill(broker: LocalBroker) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS) for name in ("source", "target")]).values():
        future.result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce("source", str(number), partition=number % PARTITIONS)
    assert producer.flush(SECONDS_MAX) == 0


class Output:
    """Everything that was ever committed to the target, as its readers see it, in order."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._consumer = Consumer({**consumer_settings(bootstrap), "group.id": "judge"})
        self._consumer.assign([TopicPartition("target", index, 0) for index in range(PARTITIONS)])
        self.values: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def __len__(self) -> int:
        return sum(map(len, self.values))

    def read_until(self, count: int) -> None:
        while len(self) < count:
            message = self._consumer.poll(SECONDS_MAX)
            assert message is not None, f"the copy is stuck after {len(self)} of {RECORDS} records"
            if not message.error():
                self.values[message.partition()].append(int(message.value()))

    def is_at_its_end(self) -> bool:
        return self._consumer.poll(1.0) is None

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("seed", [1])
def test_output_equals_input_although_workers_and_broker_are_killed(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with LocalBroker(data_dir=tmp_path, settings=SETTINGS) as broker:
        fill(broker)
        output = Output(broker.bootstrap)
        with workers(broker.bootstrap) as running:
            for number in range(KILLS):
                output.read_until(number * RECORDS // KILLS + random.randrange(1, RECORDS // KILLS))
                if number % 2:
                    broker.kill()
                    broker.start()
                else:
                    victim = random.randrange(WORKERS)
                    running[victim].kill()
                    running[victim] = Worker(broker.bootstrap)
            output.read_until(RECORDS)
            assert output.is_at_its_end(), "nothing was written twice"
        output.close()
    assert output.values == [list(range(index, RECORDS, PARTITIONS)) for index in range(PARTITIONS)]
