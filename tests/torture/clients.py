"""Clients that never stop, on threads of their own, with everything they do and see in one history.

Each kind does what such clients do all day, and now and then one of its clients is dropped in the middle of it and
another takes its place, as a process that dies and is started again.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaException

from headrace.testing.history import Crash, Ended, History, RecordedConsumer, RecordedProducer, TopicPartition
from headrace.testing.history.events import from_line
from tests.torture.plan import SECONDS_MAX, Dice
from tests.torture.transacting import IS_OF_NO_USE, Life

ROOT = Path(__file__).parents[2]
# Far above those of threads, and so many that no two processes begin near each other.
VALUES_OF_PROCESSES = (2**40, 2**62)
# Longer than brokers may take to start and a cut to heal: that clients get on is judged by their progress.
MESSAGE_TIMEOUT_MS = 300_000
# Keeps a producer from running far ahead of a broker that is down, and from taking the whole machine.
IN_FLIGHT_MAX = 100
# Crashes must also hit the moment in which a log rolls, so keys fill its segments, also where they are compressed.
KEY = Random(0).randbytes(2000)
SHORT_KEY_BYTES = 200
# Clients that come back at once: the time between two kills should be the broker's, not a back-off's. When every broker
# is gone, librdkafka would otherwise forget its coordinators and wait for them.
IMPATIENT = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
    "retry.backoff.ms": 5,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class Loop(threading.Thread):
    """A client that goes on until it is told to stop. What goes wrong for good ends up in `failures`."""

    def __init__(
        self, history: History, name: str, settings: Mapping[str, Any], dice: Dice, places: Sequence[TopicPartition]
    ) -> None:
        """`settings` say where the brokers are, and what else all clients of the test have in common."""
        super().__init__(name=name, daemon=True)  # a client that hangs must not keep the tests from ending
        self.failures: list[str] = []
        self.crashes = 0
        self.history, self.dice, self.places = history, dice, places
        self._common_settings = settings
        self._stopping = threading.Event()

    def settings(self, **more: Any) -> dict[str, Any]:
        named = {key.replace("_", "."): value for key, value in more.items()}
        return {**IMPATIENT, **named, **self._common_settings}

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and not self.failures:
                self.live()
                self.crashes += 1
        except Exception as error:
            self.failures.append(repr(error))
            raise

    def live(self) -> None:
        """One client's life: returns when it is dropped, or when this thread is to stop."""
        raise NotImplementedError

    @property
    def goes_on(self) -> bool:
        return not self._stopping.is_set() and not self.failures

    def new_name(self) -> str:
        return f"{self.name} life {self.crashes}"

    def stop(self) -> None:
        self._stopping.set()


class Sending(Loop):
    """An idempotent producer. Its clients are not dropped: what they were not told about, nobody could judge."""

    def __init__(self, codec: str, rest_s: float, *arguments: Any) -> None:
        """`rest_s` is how long it rests after each record, with a short key then; without a rest keys fill segments."""
        super().__init__(*arguments)
        self._codec = codec
        self._rest_s = rest_s
        self._key = KEY if not rest_s else KEY[:SHORT_KEY_BYTES]
        self.producer: RecordedProducer | None = None

    def live(self) -> None:
        settings = self.settings(
            compression_type=self._codec,
            linger_ms=1,
            batch_num_messages=20,
            queue_buffering_max_messages=IN_FLIGHT_MAX,
            message_timeout_ms=MESSAGE_TIMEOUT_MS,
        )
        self.producer = RecordedProducer(self.history, self.new_name(), settings)
        turn = 0
        while self.goes_on and not self.producer.failures:
            self.producer.send(self.places[turn % len(self.places)], self._key)
            turn += 1
            if self._rest_s:
                self._stopping.wait(self._rest_s)
        if not self.producer.flush(SECONDS_MAX):
            self.failures.append("not everything was delivered in the end")
        self.failures += self.producer.failures

    @property
    def acknowledged(self) -> int:
        return 0 if self.producer is None else self.producer.acknowledged


class Transacting(Loop):
    """Transactions over several partitions: committed, aborted, or left open by a client that is killed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.committed = 0
        self._process: subprocess.Popen[str] | None = None

    def live(self) -> None:
        name = self.new_name()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.transacting", self._new_life(name).to_json()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._stopping.is_set():
            self._process.terminate()
        self._record_events(self._process)
        self.history.record(Crash(name))
        code = self._process.wait()
        if code not in (0, IS_OF_NO_USE, -signal.SIGKILL) and not (self._stopping.is_set() and code == -signal.SIGTERM):
            self.failures.append(f"{name} ended with exit code {code}")

    def _new_life(self, name: str) -> Life:
        # Sometimes the same id, so that the successor ends what was left open; sometimes another, so that time does.
        transactional_id = self.name if self.dice.random() < 0.5 else uuid4().hex
        settings = self.settings(transactional_id=transactional_id, transaction_timeout_ms=2000, linger_ms=0)
        places = [(place.topic, place.partition) for place in self.places]
        return Life(name, settings, places, self.dice.randrange(*VALUES_OF_PROCESSES), self.dice.randrange(2**32))

    def _record_events(self, process: "subprocess.Popen[str]") -> None:
        """Returns at the end of the process. It had not begun what a line says that it did not finish."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):
                    event = from_line(line)
                    self.history.record(event)
                    self.committed += isinstance(event, Ended) and event.committed

    def stop(self) -> None:
        super().stop()
        if self._process is not None:
            self._process.terminate()


class Following(Loop):
    """A reader of all partitions from the beginning, through every crash: nothing may be left out."""

    def live(self) -> None:
        with RecordedConsumer(self.history, self.new_name(), self.settings(group_id="never-joined")) as consumer:
            consumer.assign(self.places)
            while self.goes_on:
                consumer.poll(0.1)


class Subscribed(Loop):
    """A member of a group that commits what it has read and is dropped now and then."""

    def __init__(self, group: Mapping[str, Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = group

    def live(self) -> None:
        consumer = RecordedConsumer(self.history, self.new_name(), {**self.settings(), **self._group})
        try:
            consumer.subscribe([self.places[0].topic])
            while self.goes_on and self.dice.random() > 0.02:
                if consumer.poll(0.1):
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: RecordedConsumer) -> None:
        # A rebalance may come first, or the broker be down: whoever is next reads it again.
        with suppress(KafkaException):
            consumer.confluent.commit(asynchronous=False)
