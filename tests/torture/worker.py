"""A worker that reads a topic, transforms each record and writes it to another: at most, at least, or exactly once.

Runs as a process of its own, so that a test can kill it: `python -m tests.torture.worker '{"bootstrap": …}'`. Whatever
goes wrong, it starts over as a new program, as a supervisor would start it again; SIGTERM ends it after its batch, and
SIGABRT has it say where it stands. A job may also tell it to die by itself in the middle of a batch, at the instant
that its kind of delivery fears most.
"""

import faulthandler
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4
from zlib import crc32

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.torture.transaction_v2 import TransactionalProducerV2

AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE = "at most once", "at least once", "exactly once"
BATCH = 20
SECONDS_MAX = 10.0
# When every broker is gone, librdkafka forgets what it knew of them and starts from the bootstrap address. Requests to
# the coordinator of a group then wait for the broker that it has forgotten.
CLIENT = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 200, "log_level": 0}


@dataclass(frozen=True)
class Job:
    bootstrap: str
    semantics: str
    group_protocol: str = "classic"
    transaction_version: int = 1  # what librdkafka speaks; 2 is spoken by `transaction_v2.py`
    transactional_id: str = ""  # empty: a new one each time, so that what was left open is ended by its timeout
    dies_at_batch: int = 0  # 0: only when somebody kills it
    source: str = "source"
    target: str = "target"
    target_partitions: int = 3

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def transformed(value: bytes) -> bytes:
    return str(2 * int(value) + 1).encode()


def target_partition(key: bytes, job: Job) -> int:
    return crc32(key) % job.target_partitions


def consumer_settings(job: Job) -> dict[str, Any]:
    settings = {
        "bootstrap.servers": job.bootstrap,
        "group.id": "workers",
        "group.protocol": job.group_protocol,
        "auto.offset.reset": "error",  # the job has a beginning: whoever loses its place should say so
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        **CLIENT,
    }
    if job.group_protocol == "classic":  # in the newer protocol the broker decides
        settings |= {"session.timeout.ms": 1000, "heartbeat.interval.ms": 200}
    return settings


def producer_settings(job: Job) -> dict[str, Any]:
    settings = {"bootstrap.servers": job.bootstrap, "linger.ms": 0, **CLIENT}
    if job.semantics == AT_MOST_ONCE:
        # A retry could bring a record a second time.
        return settings | {"enable.idempotence": False, "message.send.max.retries": 0, "message.timeout.ms": 3000}
    if job.semantics == AT_LEAST_ONCE:
        return settings | {"enable.idempotence": True}
    return settings | {"transactional.id": job.transactional_id or uuid4().hex, "transaction.timeout.ms": 2000}


def new_producer(job: Job) -> Any:
    settings = producer_settings(job)
    if job.transaction_version == 2:
        return TransactionalProducerV2(job.bootstrap, settings["transactional.id"], settings["transaction.timeout.ms"])
    return Producer(settings)


class LostPlace(Exception):
    """The client says that the group has no committed offset, or that the record that it names is not there.

    librdkafka says so, too, when an open transaction of somebody who died keeps the offset unstable for too long.
    """


class Worker:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.stopping = False
        self._batches = 0
        self._messages: list[Any] = []
        signal.signal(signal.SIGTERM, self._stop)
        self._consumer = Consumer(consumer_settings(job))
        self._producer = new_producer(job)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        if self._job.semantics == EXACTLY_ONCE:
            self._producer.init_transactions(SECONDS_MAX)
        batch = {AT_MOST_ONCE: self._at_most_once, AT_LEAST_ONCE: self._at_least_once, EXACTLY_ONCE: self._exactly_once}
        self._consumer.subscribe([self._job.source], on_assign=self._forget, on_revoke=self._forget)
        while not self.stopping:
            self._read()
            if self._messages:
                self._batches += 1
                batch[self._job.semantics](self._messages)
        self._consumer.close()

    def _read(self) -> None:
        """Up to a batch. One by one: what librdkafka's `consume` brings may be of an assignment that is over."""
        self._messages = []
        wait_s = 0.2
        while len(self._messages) < BATCH and (message := self._consumer.poll(wait_s)) is not None:
            if message.error() is None:
                self._messages.append(message)
            elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                raise LostPlace(str(message.error()))
            wait_s = 0

    def _forget(self, *_: object) -> None:
        """The group has shared out anew: what was read before is somebody else's, or is read again."""
        self._messages.clear()

    # The three of them differ in when offsets are committed, and in nothing else.

    def _at_most_once(self, messages: list[Any]) -> None:
        self._commit(messages)
        self._perhaps_die()
        self._write(messages)
        self._producer.flush(SECONDS_MAX)

    def _at_least_once(self, messages: list[Any]) -> None:
        self._write(messages)
        if self._producer.flush(SECONDS_MAX):
            raise TimeoutError("records are still on their way")
        self._perhaps_die()
        self._commit(messages)

    def _exactly_once(self, messages: list[Any]) -> None:
        self._producer.begin_transaction()
        self._write(messages)
        try:
            metadata = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets_after(messages), metadata, SECONDS_MAX)
            self._perhaps_die()
            self._producer.commit_transaction(SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                self._producer.abort_transaction(SECONDS_MAX)
            raise

    def _write(self, messages: list[Any]) -> None:
        for one in messages:
            key = one.key()
            self._producer.produce(
                self._job.target, transformed(one.value()), key, partition=target_partition(key, self._job)
            )

    def _commit(self, messages: list[Any]) -> None:
        """Raises if anything is not committed for certain."""
        for row in self._consumer.commit(offsets=offsets_after(messages), asynchronous=False):
            if row.error is not None:
                raise KafkaException(row.error)

    def _perhaps_die(self) -> None:
        if self._batches == self._job.dies_at_batch:
            os.kill(os.getpid(), signal.SIGKILL)


def offsets_after(messages: list[Any]) -> list[TopicPartition]:
    ends = {(one.topic(), one.partition()): one.offset() + 1 for one in messages}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]


def main() -> None:
    faulthandler.enable()
    worker = Worker(Job(**json.loads(sys.argv[1])))
    try:
        worker.run()
    except Exception as error:
        if worker.stopping:
            return  # a new program would not know that it was asked to end
        print(f"{os.getpid()} starts over: {error!r}", file=sys.stderr, flush=True)
        # The consumer is ahead of what counts: a new program goes on from what is committed.
        os.execv(sys.executable, [sys.executable, "-m", "tests.torture.worker", sys.argv[1]])


if __name__ == "__main__":
    main()
