"""A member of a group, in each of the three Python clients, behind one face.

Members poll on a thread of their own, as applications do: a rebalance needs all of them at the same time.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from tests.compat.client_driver import SECONDS_MAX

POLL_S = 0.1


class Member(Protocol):
    """Reads with a group. What it holds and has read can be looked at while it runs."""

    assigned: set[int]
    values: list[bytes]

    def close(self) -> None:
        """Leaves the group; what it has read is committed before."""


class _Threaded:
    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.bootstrap, self.group, self.topic, self.settings = bootstrap, group, topic, settings
        self.assigned: set[int] = set()
        self.values: list[bytes] = []
        self.rebalances = 0
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error

    def run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.stop.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "the member does not come to an end"
        if self.failure is not None:
            raise self.failure


class ConfluentMember(_Threaded):
    def run(self) -> None:
        from confluent_kafka import Consumer, KafkaError, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 300,
                "log_level": 0,
                **self.settings,
            }
        )

        def changed(consumer: Any, partitions: Any) -> None:
            self.rebalances += 1

        consumer.subscribe([self.topic], on_assign=changed)
        while not self.stop.is_set():
            record = consumer.poll(POLL_S)
            self.assigned = {one.partition for one in consumer.assignment()}
            if record is not None and record.error() is None:
                self.values.append(record.value())
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:  # nothing was read since the last rebalance
                raise
        consumer.close()


class KafkaPythonMember(_Threaded):
    def run(self) -> None:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=1_000,  # a forgotten subscription is remembered then: kafka_python_config.py
            **self.settings,
        )
        # A group leader without the topic's metadata assigns no partitions, and where its first requests for metadata
        # raced, it sends no other.
        while not consumer.partitions_for_topic(self.topic) and not self.stop.is_set():
            self.stop.wait(0.05)
        consumer.subscribe([self.topic])
        while not self.stop.is_set():
            for records in consumer.poll(timeout_ms=POLL_S * 1000).values():
                self.values += [record.value for record in records]
            self.assigned = {one.partition for one in consumer.assignment()}
        if self.values:
            consumer.commit()
        consumer.close()


class AiokafkaMember(_Threaded):
    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=5_000,
            **self.settings,
        )
        await consumer.start()
        while not self.stop.is_set():
            for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                self.values += [record.value for record in records]
            self.assigned = {one.partition for one in consumer.assignment()}
        if self.values:
            await consumer.commit()
        await consumer.stop()


MEMBERS: dict[str, type[_Threaded]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


def until(condition: Callable[[], bool], what: str, *members: _Threaded) -> None:
    """Returns when it is true; fails when it does not become true, or a member fails first."""
    import time

    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        for member in members:
            if member.failure is not None:
                raise member.failure
        state = [(sorted(member.assigned), len(member.values)) for member in members]
        assert time.monotonic() < deadline, f"not in time: {what}; members hold {state}"
        pause.wait(0.02)


def owners(*members: _Threaded) -> dict[int, int]:
    """How many members hold each partition."""
    held: dict[int, int] = defaultdict(int)
    for member in members:
        for partition in member.assigned:
            held[partition] += 1
    return dict(held)
