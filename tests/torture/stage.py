"""What tests with faults share: clients of all kinds on one history, waiting for their progress, and the verdict."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.history import Begin, Ended, History, Poll, TopicPartition, check, read_everything
from tests.torture.clients import IMPATIENT, Following, Loop, Sending, Subscribed, Transacting
from tests.torture.plan import SECONDS_MAX, Dice

VIOLATIONS_SHOWN = 5
PLACES = [TopicPartition("crash", index) for index in range(3)]
# Of brokers: groups that notice at once who is gone.
GROUP_SETTINGS = {
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
    client_settings: Mapping[str, Any] = field(default_factory=dict)
    rest_s: float = 0.0  # of a sender after each record: long runs must fit into disks and memory
    history: History = field(default_factory=History)

    def _common(self, name: str) -> tuple[History, str, Mapping[str, Any], Dice, list[TopicPartition]]:
        settings = {"bootstrap.servers": self.bootstrap, **self.client_settings}
        return self.history, name, settings, Dice(self.dice.randrange(2**32)), PLACES

    def senders_and_a_reader(self) -> list[Loop]:
        return [
            Sending("none", self.rest_s, *self._common("plain")),
            Sending("lz4", self.rest_s, *self._common("compressed")),
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

    def judge(self, loops: list[Loop], faults: str) -> None:
        """Everything is read from the beginning, and the whole history must be one of an honest queue."""
        assert [failure for loop in loops for failure in loop.failures] == []
        settings = {"bootstrap.servers": self.bootstrap, **IMPATIENT, **self.client_settings}
        log = read_everything(self.history, settings, PLACES)
        events = self.history.events
        ended = [event.committed for event in events if isinstance(event, Ended)]
        print(
            f"{faults}, {len(log)} records in the log; transactions: {ended.count(True)} committed, "
            f"{ended.count(False)} aborted, {sum(isinstance(one, Begin) for one in events) - len(ended)} cut short; "
            f"{sum(len(one.records) for one in events if isinstance(one, Poll))} records polled; "
            f"{sum(loop.crashes for loop in loops)} clients dropped"
        )
        wrong = check(events)
        assert not wrong, f"{len(wrong)} promises broken, the first of them: {wrong[:VIOLATIONS_SHOWN]}"


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
            loop.join(SECONDS_MAX)
        hanging = [loop.name for loop in loops if loop.is_alive()]
    assert not hanging, f"clients that were told to stop wait for something that does not come: {hanging}"


def create_topic(bootstrap: str, replicas: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = PLACES[0].topic
    named = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(topic, len(PLACES), replicas, config=named)])[topic].result(SECONDS_MAX)


def wait_for(what: str, loops: list[Loop], progress: Callable[[Any], int], count: int) -> None:
    """Until the clients have got that much further, all together."""

    def done() -> int:
        return sum(map(progress, loops))

    wanted, deadline = done() + count, time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while done() < wanted and not any(loop.failures for loop in loops):
        assert time.monotonic() < deadline, f"{what} go on after a fault"
        pause.wait(0.005)


def acknowledged(loop: Loop) -> int:
    return loop.acknowledged if isinstance(loop, Sending) else 0


def committed(loop: Loop) -> int:
    return loop.committed if isinstance(loop, Transacting) else 0
