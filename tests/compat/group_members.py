"""A member of a group, in each of the three Python clients, behind one face.

Members poll on a thread of their own, as applications do: a rebalance needs all of them at the same time. They commit
what they have read after each poll, and before partitions are revoked where the client may revoke them in between: a
group may rebalance at any time, also one with a single member, and no partition goes back to an earlier offset then.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from tests.compat.client_driver import SECONDS_MAX

POLL_S = 0.1
BATCH_MAX = 500  # records between two commits, as many as kafka-python's poll returns at most
# Kafka's default. No test waits for a session to end, so a machine that stands still for a while ends none.
SESSION_MS = 45_000


class Member(Protocol):
    """Reads with a group. What it holds and has read can be looked at while it runs."""

    assigned: set[int]
    values: list[bytes]

    def close(self) -> None:
        """Leaves the group; what it has read is committed before."""


class Rebalancing(Exception):
    """A commit failed because the group rebalances: to be retried after another poll."""


class ThreadedMember:
    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.bootstrap, self.group, self.topic, self.settings = bootstrap, group, topic, settings
        self.assigned: set[int] = set()
        self.values: list[bytes] = []
        self.rebalances = 0
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self.consumer: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._consume())
        except BaseException as error:
            self.failure = error

    async def _consume(self) -> None:
        try:
            await self.join()
            while not self.stop.is_set():
                if await self._read():
                    await self._commit()
        finally:
            if self.consumer is not None:
                await self.leave()

    async def _read(self) -> bool:
        values = await self.poll()
        self.values += values
        self.assigned = {one.partition for one in self.consumer.assignment()}
        return bool(values)

    async def _commit(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return await self.commit()
            except Rebalancing:
                if time.monotonic() > deadline:
                    raise
                await self._read()  # completes the rebalance

    async def join(self) -> None:
        """Creates `consumer` and subscribes."""
        raise NotImplementedError

    async def poll(self) -> list[bytes]:
        raise NotImplementedError

    async def commit(self) -> None:
        """Commits what `poll` has returned. Raises Rebalancing."""
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.stop.set()
        self._thread.join(2 * SECONDS_MAX)  # the last commit may take as long as it waits for a rebalance
        assert not self._thread.is_alive(), "the member does not come to an end"
        if self.failure is not None:
            raise self.failure


class ConfluentMember(ThreadedMember):
    async def join(self) -> None:
        from confluent_kafka import Consumer

        self.consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "log_level": 0,
                **self.settings,
            }
        )

        def assigned(consumer: Any, partitions: Any) -> None:
            self.rebalances += 1

        def revoked(consumer: Any, partitions: Any) -> None:
            with suppress(Rebalancing):  # too late: the next owner reads the last records again
                self._commit_stored()

        def lost(consumer: Any, partitions: Any) -> None:
            return  # another member may own them

        self.consumer.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)

    async def poll(self) -> list[bytes]:
        values: list[bytes] = []
        record = self.consumer.poll(POLL_S)
        while record is not None:
            if record.error() is None:
                values.append(record.value())
            record = self.consumer.poll(0) if len(values) < BATCH_MAX else None
        return values

    async def commit(self) -> None:
        self._commit_stored()

    def _commit_stored(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            rows = self.consumer.commit(asynchronous=False)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.REBALANCE_IN_PROGRESS:
                raise Rebalancing from error
            if code != KafkaError._NO_OFFSET:  # nothing was read since the last rebalance
                raise
        else:
            assert [row.error for row in rows if row.error is not None] == []

    async def leave(self) -> None:
        self.consumer.close()


class KafkaPythonMember(ThreadedMember):
    async def join(self) -> None:
        from kafka import KafkaConsumer

        self.consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            allow_auto_create_topics=False,  # else a member that outlives its test creates the topic again
            metadata_max_age_ms=1_000,  # a forgotten subscription is remembered then: kafka_python_config.py
            **self.settings,
        )
        self.consumer.subscribe([self.topic])
        # A group leader that assigns the partitions before it has the topic's metadata rejoins as soon as it has them.
        # kafka-python 3.0.12 may leave that rebalance unfinished for good: once the JoinGroup response is there nothing
        # has changed any more, so a poll that begins before the SyncGroup response does not wait for it, and each
        # commit from then on raises RebalanceInProgressError, whatever the broker does.
        while self.topic not in self.consumer.topics() and not self.stop.is_set():
            self.stop.wait(0.05)

    async def poll(self) -> list[bytes]:
        polled = self.consumer.poll(timeout_ms=POLL_S * 1000)
        return [record.value for records in polled.values() for record in records]

    async def commit(self) -> None:
        from kafka.errors import RebalanceInProgressError

        try:
            self.consumer.commit()
        except RebalanceInProgressError as error:
            raise Rebalancing from error

    async def leave(self) -> None:
        self.consumer.close()


class AiokafkaMember(ThreadedMember):
    async def join(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.abc import ConsumerRebalanceListener

        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                if revoked:
                    await member.commit_before_revocation()

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.rebalances += 1

        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=5_000,
            **self.settings,
        )
        await self.consumer.start()
        self.consumer.subscribe([self.topic], listener=Listener())

    async def commit_before_revocation(self) -> None:
        try:
            with suppress(Rebalancing):  # too late: the next owner reads the last records again
                await self.commit()
        except Exception as error:  # aiokafka would log it and go on
            self.failure = error

    async def poll(self) -> list[bytes]:
        polled = await self.consumer.getmany(timeout_ms=int(POLL_S * 1000))
        return [record.value for records in polled.values() for record in records]

    async def commit(self) -> None:
        from aiokafka.errors import CommitFailedError

        try:
            await self.consumer.commit()
        except CommitFailedError as error:
            raise Rebalancing from error

    async def leave(self) -> None:
        await self.consumer.stop()


MEMBERS: dict[str, type[ThreadedMember]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


def until(condition: Callable[[], bool], what: str, *members: ThreadedMember) -> None:
    """Returns when it is true; fails when it does not become true, or a member fails first."""
    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        for member in members:
            if member.failure is not None:
                raise member.failure
        state = [(sorted(member.assigned), len(member.values)) for member in members]
        assert time.monotonic() < deadline, f"not in time: {what}; members hold {state}"
        pause.wait(0.02)


def owners(*members: ThreadedMember) -> dict[int, int]:
    """How many members hold each partition."""
    held: dict[int, int] = defaultdict(int)
    for member in members:
        for partition in member.assigned:
            held[partition] += 1
    return dict(held)
