"""Kafka Streams counts words with `exactly_once_v2` while broker and application are killed: no count twice, none lost.

The application forwards every single count, so the committed output of a word is 1, 2, 3 … up to how often it was
written; a record that was processed twice or not at all shows as a repetition or a hole.
"""

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.testing import LocalBroker
from tests.compat.test_transactions import create
from tests.interop.background import Background
from tests.interop.java_programs import start
from tests.interop.records import read_messages

INPUT, OUTPUT = "lines", "counts"
PARTITIONS = 2
ROUNDS = 6  # after each but the last, something is killed
LINES_A_ROUND = 2000  # more than the application gets done before the kill
WORDS = [f"word{number}" for number in range(40)]
SECONDS_MAX = 60.0

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def write_lines(broker: LocalBroker, chance: random.Random) -> Counter[str]:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    written: Counter[str] = Counter()
    for number in range(LINES_A_ROUND):
        words = chance.choices(WORDS, k=3)
        written.update(words)
        producer.produce(INPUT, " ".join(words), partition=number % PARTITIONS)
    assert producer.flush(SECONDS_MAX) == 0
    return written


def counts(broker: LocalBroker) -> dict[str, list[int]]:
    """Word → the counts that were told for it, in the order in which they can be read."""
    told: dict[str, list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for message in read_messages(broker.bootstrap, OUTPUT, partition, "read_committed"):
            told[message.key().decode()].append(int(message.value()))
    return dict(told)


def application(broker: LocalBroker, state_dir: Path) -> Background:
    return start("WordCount", broker.bootstrap, str(state_dir), INPUT, OUTPUT)


def wait_until_counted(broker: LocalBroker, app: Background, written: Counter[str]) -> None:
    """Until as many counts are committed as words were written; too few in the end is told by the assertion."""
    for _ in range(240):
        if sum(map(len, counts(broker).values())) >= written.total():
            return
        app.pause(0.5)


def test_every_word_is_counted_exactly_once_while_broker_and_application_are_killed(tmp_path: Path) -> None:
    chance = random.Random(1)
    written: Counter[str] = Counter()
    with LocalBroker(data_dir=tmp_path / "data", settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        for topic in (INPUT, OUTPUT):
            create(broker, topic, PARTITIONS)
        app = application(broker, tmp_path / "state")
        try:
            for number in range(ROUNDS):
                written += write_lines(broker, chance)
                app.pause(chance.uniform(0, 2))  # somewhere in the middle of it
                if number == ROUNDS // 2:
                    app.close()
                    app = application(broker, tmp_path / "state")
                elif number < ROUNDS - 1:
                    broker.kill()
                    broker.restart()
            wait_until_counted(broker, app, written)
        finally:
            app.close()
        assert counts(broker) == {word: list(range(1, often + 1)) for word, often in written.items()}
