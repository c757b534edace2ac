"""At most once, at least once, exactly once: jobs of several workers, whose workers and broker are killed at random.

What each may lose or repeat is asserted, and that it does: the first worker is made to die at the worst instant, so
that "may" is more than a word. Exactly once must stand the same, with both generations of the transaction protocol and
of groups.
"""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker
from headrace.testing.history import Delivery, delivery, wait_until_settled
from headrace.testing.history import TopicPartition as Place
from tests.torture.plan import Dice, kills
from tests.torture.worker import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    Job,
    consumer_settings,
    transformed,
)

WORKERS = 3
PARTITIONS = 4
KEYS = [f"key-{number}".encode() for number in range(16)]
RECORDS_A_KILL = 120  # several batches for every worker, so that a kill comes into the middle of things
SECONDS_MAX = 60.0
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}


class Workers:
    """Processes that are started again when somebody has killed them. Their places outlive them, and keep their ids."""

    def __init__(self, job: Job, output: Path) -> None:
        self._job = job
        self._output = output
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def _start(self, place: int, dies_at_batch: int = 0) -> None:
        job = replace(self._job, dies_at_batch=dies_at_batch)
        if job.transactional_id:
            job = replace(job, transactional_id=f"{job.transactional_id}-{place}")
        command = [sys.executable, "-m", "tests.torture.worker", job.to_json()]
        with self._output.open("ab") as output:
            self._processes[place] = subprocess.Popen(command, cwd=ROOT, stderr=output)

    def start(self) -> None:
        """One works alone until it dies at its worst instant; then everybody begins."""
        self._start(0, dies_at_batch=2)
        assert self._processes[0].wait(SECONDS_MAX) == -signal.SIGKILL
        for place in range(WORKERS):
            self._start(place)

    def kill(self, place: int) -> None:
        self._processes[place].kill()
        self._processes[place].wait()
        self._start(place)

    def end(self) -> None:
        """Everybody finishes its batch. They are asked again and again: one may have been starting over just now."""
        deadline = time.monotonic() + SECONDS_MAX
        while running := [process for process in self._processes.values() if process.poll() is None]:
            if time.monotonic() > deadline:
                running[0].send_signal(signal.SIGABRT)
                running[0].wait()
                raise AssertionError(f"a worker does not end; it said:\n{self._output.read_text()}")
            for process in running:
                process.terminate()
            threading.Event().wait(0.2)

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextmanager
def workers(job: Job, output: Path) -> Iterator[Workers]:
    crew = Workers(job, output)
    try:
        crew.start()
        yield crew
        crew.end()
    finally:
        crew.kill_all()


def fill(job: Job, records: int) -> dict[bytes, list[int]]:
    """Numbers under keys, each key in one partition; what must come out at the other end."""
    admin = AdminClient({"bootstrap.servers": job.bootstrap, "log_level": 0})
    topics = [NewTopic(job.source, PARTITIONS), NewTopic(job.target, job.target_partitions)]
    for future in admin.create_topics(topics).values():
        future.result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": job.bootstrap, "queue.buffering.max.messages": 1_000_000})
    wanted: dict[bytes, list[int]] = defaultdict(list)
    for number in range(records):
        key = KEYS[number % len(KEYS)]
        producer.produce(job.source, str(number), key, partition=KEYS.index(key) % PARTITIONS)
        wanted[key].append(int(transformed(str(number).encode())))
    assert producer.flush(SECONDS_MAX) == 0
    beginnings = [TopicPartition(job.source, index, 0) for index in range(PARTITIONS)]
    # Not by a consumer: librdkafka gives up a commit when it has not found the coordinator within ten seconds.
    [committed] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("workers", beginnings)]).values()
    committed.result(SECONDS_MAX)
    return wanted


class Progress:
    """How far the group has come: the sum of its committed offsets."""

    def __init__(self, job: Job) -> None:
        self._consumer = Consumer({**consumer_settings(job), "socket.timeout.ms": 5000})
        self._places = [TopicPartition(job.source, index) for index in range(PARTITIONS)]
        self._pause = threading.Event()

    def wait_for(self, records: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while (done := self._now()) < records:
            assert time.monotonic() < deadline, f"the job is stuck at {done} of {records} records"
            self._pause.wait(0.02)

    def _now(self) -> int:
        try:
            rows = self._consumer.committed(self._places, timeout=5)
        except KafkaException:
            return -1  # the broker is down, or has only just come back
        return sum(max(row.offset, 0) for row in rows)


def output(job: Job) -> dict[bytes, list[int]]:
    """Everything that readers of committed data find in the target, by key, when no transaction is open any more."""
    places = [Place(job.target, index) for index in range(job.target_partitions)]
    wait_until_settled({"bootstrap.servers": job.bootstrap}, places, SECONDS_MAX)
    settings = {**consumer_settings(job), "group.id": "judge", "enable.partition.eof": True}
    settings |= {"auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(job.target, index, 0) for index in range(job.target_partitions)])
    found: dict[bytes, list[int]] = defaultdict(list)
    ended: set[Any] = set()
    while len(ended) < job.target_partitions:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, "the output can be read to its end"
        if message.error():
            ended.add(message.partition())
        else:
            found[message.key()].append(int(message.value()))
    consumer.close()
    return found


def run(broker: LocalBroker, job: Job, dice: Dice, number: int) -> Delivery:
    """Let the workers work, kill somebody again and again, and compare what came out with what went in."""
    records = (number + 1) * RECORDS_A_KILL
    wanted = fill(job, records)
    killed: Counter[str] = Counter()
    progress = Progress(job)
    said = Path(broker.data_dir, "workers.txt")
    with workers(job, said) as crew:
        for kill in range(number):
            progress.wait_for(kill * RECORDS_A_KILL + dice.randrange(RECORDS_A_KILL))
            threading.Event().wait(dice.random() * 0.1)  # between two commits, not only right after one
            if dice.random() < 0.4:
                killed["broker"] += 1
                broker.kill()
                broker.start()
            else:
                killed["worker"] += 1
                crew.kill(dice.randrange(WORKERS))
        progress.wait_for(records)
    # librdkafka gives up after some two seconds of "unstable offset" and then says that there is none; such a worker
    # starts over. If the broker had really lost a place, no worker would ever get on, and the job would be stuck.
    print(f"{said.read_text().count('LostPlace')} times a worker was not told its place")
    found = delivery(wanted, output(job))
    print(
        f"{job.semantics}, {job.group_protocol} groups: {dict(killed)} killed, {records} records in, "
        f"{len(found.lost)} lost, {len(found.repeated)} repeated, {len(found.reordered)} reordered"
    )
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(data_dir=tmp_path, settings=SETTINGS) as started:
        yield started


PROTOCOLS = pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@PROTOCOLS
@pytest.mark.parametrize("transaction_version", [1, 2])
def test_exactly_once_loses_repeats_and_reorders_nothing(
    broker: LocalBroker, dice: Dice, group_protocol: str, transaction_version: int
) -> None:
    job = Job(
        broker.bootstrap,
        EXACTLY_ONCE,
        group_protocol,
        transaction_version,
        # With an id of its own, a worker's successor ends what it left open; without, its timeout does.
        transactional_id=dice.choice(["", "worker"]),
    )
    assert run(broker, job, dice, kills(3)) == Delivery()


@PROTOCOLS
def test_at_least_once_repeats_and_never_loses(broker: LocalBroker, dice: Dice, group_protocol: str) -> None:
    found = run(broker, Job(broker.bootstrap, AT_LEAST_ONCE, group_protocol), dice, kills(2))
    assert found.is_at_least_once
    assert found.repeated, "who dies between writing and committing writes it again"
    assert not found.reordered


@PROTOCOLS
def test_at_most_once_loses_and_never_repeats(broker: LocalBroker, dice: Dice, group_protocol: str) -> None:
    found = run(broker, Job(broker.bootstrap, AT_MOST_ONCE, group_protocol), dice, kills(2))
    assert found.is_at_most_once
    assert found.lost, "who dies between committing and writing never writes it"
