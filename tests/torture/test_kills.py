"""`kill -9` of the broker under load, again and again: no promise is broken, to whatever kind of client."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker
from headrace.testing.history import Begin, Ended, History, Poll, TopicPartition, check, read_everything
from tests.torture.clients import IMPATIENT, SECONDS_MAX, Following, Loop, Sending, Subscribed, Transacting
from tests.torture.plan import Dice, kills

PLACES = [TopicPartition("crash", index) for index in range(3)]
# A kill comes after this many acknowledgements at most; sometimes after none, while the broker still recovers.
ACKS_BETWEEN_KILLS_MAX = 400
TRANSACTIONS_BETWEEN_KILLS_MAX = 8
SECONDS_IN_ALL_MAX = 3600  # under torture
SETTINGS = {
    "log.segment.bytes": str(1024 * 1024),  # the smallest there is, so that logs roll
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}
CLASSIC = {"group.id": "classic", "session.timeout.ms": 1000, "heartbeat.interval.ms": 200}
MODERN = {"group.id": "modern", "group.protocol": "consumer"}


@dataclass
class Stage:
    """The clients of a test, and the history that they write together."""

    bootstrap: str
    dice: Dice
    history: History = field(default_factory=History)

    def _common(self, name: str) -> tuple[History, str, str, Dice, list[TopicPartition]]:
        return self.history, name, self.bootstrap, Dice(self.dice.randrange(2**32)), PLACES

    def senders_and_a_reader(self) -> list[Loop]:
        return [
            Sending("none", *self._common("plain")),
            Sending("lz4", *self._common("compressed")),
            Following(*self._common("following")),
        ]

    def coordinated(self) -> list[Loop]:
        return [
            Transacting(*self._common("transacting 1")),
            Transacting(*self._common("transacting 2")),
            Subscribed(CLASSIC, *self._common("classic 1")),
            Subscribed(CLASSIC, *self._common("classic 2")),
            Subscribed(MODERN, *self._common("modern 1")),
            Subscribed(MODERN, *self._common("modern 2")),
        ]


@contextmanager
def running(loops: list[Loop]) -> Iterator[None]:
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.stop()
        for loop in loops:
            loop.join()


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = PLACES[0].topic
    admin.create_topics([NewTopic(topic, len(PLACES), 1)])[topic].result(SECONDS_MAX)


def wait_for(what: str, loops: list[Loop], progress: Callable[[Any], int], count: int) -> None:
    """Until the clients have got that much further, all together."""

    def done() -> int:
        return sum(map(progress, loops))

    wanted, deadline = done() + count, time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while done() < wanted and not any(loop.failures for loop in loops):
        assert time.monotonic() < deadline, f"{what} go on after a crash"
        pause.wait(0.005)


def acknowledged(loop: Loop) -> int:
    return loop.acknowledged if isinstance(loop, Sending) else 0


def committed(loop: Loop) -> int:
    return loop.committed if isinstance(loop, Transacting) else 0


def judge(broker: LocalBroker, stage: Stage, loops: list[Loop], number: int) -> None:
    assert [failure for loop in loops for failure in loop.failures] == []
    log = read_everything(stage.history, {"bootstrap.servers": broker.bootstrap, **IMPATIENT}, PLACES)
    events = stage.history.events
    ended = [event.committed for event in events if isinstance(event, Ended)]
    print(
        f"{number} kills, {len(log)} records in the log; transactions: {ended.count(True)} committed, "
        f"{ended.count(False)} aborted, {sum(isinstance(one, Begin) for one in events) - len(ended)} cut short; "
        f"{sum(len(one.records) for one in events if isinstance(one, Poll))} records polled; "
        f"{sum(loop.crashes for loop in loops)} clients dropped"
    )
    assert check(events) == []


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_IN_ALL_MAX)
def test_kills_under_load_lose_double_and_reorder_nothing_that_was_acknowledged(dice: Dice) -> None:
    number = kills(50, times=10)
    with LocalBroker(memory=False, settings=SETTINGS) as broker:
        create_topic(broker.bootstrap)
        stage = Stage(broker.bootstrap, dice)
        loops = stage.senders_and_a_reader()
        with running(loops):
            for _ in range(number):
                wait_for("producers", loops, acknowledged, dice.randrange(ACKS_BETWEEN_KILLS_MAX))
                broker.kill()
                broker.start()
        judge(broker, stage, loops, number)
        assert len(list(Path(broker.data_dir, str(PLACES[0])).glob("*.log"))) > 1, "the log rolled on the way"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_IN_ALL_MAX)
def test_kills_break_no_promise_to_transactions_and_groups(dice: Dice) -> None:
    number = kills(10, times=2)
    with LocalBroker(memory=False, settings=SETTINGS) as broker:
        create_topic(broker.bootstrap)
        stage = Stage(broker.bootstrap, dice)
        loops = [*stage.senders_and_a_reader()[1:], *stage.coordinated()]
        with running(loops):
            for _ in range(number):
                wait_for("producers", loops, acknowledged, dice.randrange(ACKS_BETWEEN_KILLS_MAX))
                wait_for("transactions", loops, committed, dice.randrange(TRANSACTIONS_BETWEEN_KILLS_MAX))
                broker.kill()
                broker.start()
        judge(broker, stage, loops, number)


def test_a_topic_that_was_acknowledged_is_there_after_a_kill_and_a_deleted_one_is_not() -> None:
    with LocalBroker(memory=False) as broker:
        for _ in range(kills(5)):
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, **IMPATIENT})
            kept, dropped = f"kept-{uuid4().hex[:8]}", f"dropped-{uuid4().hex[:8]}"
            wanted = [NewTopic(kept, 2, 1, config={"retention.ms": "1000"}), NewTopic(dropped, 2, 1)]
            for creation in admin.create_topics(wanted).values():
                creation.result(SECONDS_MAX)
            admin.delete_topics([dropped])[dropped].result(SECONDS_MAX)
            broker.kill()
            broker.start()
            topics = admin.list_topics(timeout=SECONDS_MAX).topics
            assert kept in topics
            assert len(topics[kept].partitions) == 2
            assert dropped not in topics
