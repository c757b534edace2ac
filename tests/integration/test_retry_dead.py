"""Dead letters on their way back, against a real broker: as they were, to where they were, once."""

import json
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from headrace.cli.app import run
from headrace.pipeline import dead_letters
from headrace.pipeline.dead_letters import DEAD_HEADERS, Chosen, DeadLetters, RetryFailed

WAIT_S = 30


class Stage:
    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.name = bootstrap, f"p-{uuid4().hex[:8]}"
        self.topic, self.dead = f"{self.name}.in", f"{self.name}.dead"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(self.topic, 3, 1, config={"retention.ms": "-1"}), NewTopic(self.dead, 2, 1)]
        for future in self.admin.create_topics(topics).values():
            future.result(WAIT_S)
        self.file = folder / f"{self.name}.yaml"
        self.file.write_text(
            f"pipeline: {self.name}\nsources: {{a: {{topic: {self.topic}}}}}\nsink: {{topic: {self.name}.out}}\n"
            f"dead_letters: {self.dead}\n"
        )

    def put_aside(self, count: int, *, error: str = "not JSON", topic: str | None = None, value: bytes = b"") -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "message.max.bytes": 4_000_000})
        for number in range(count):
            time = 1_700_000_000_000 + number
            said = (error, self.name, topic or self.topic, str(number % 3), str(number), str(time))
            notes = [(name, text.encode()) for name, text in zip(DEAD_HEADERS, said, strict=True)]
            headers = [("own", b"%d" % number), ("own", None), *notes]
            key, own = b"k%d" % number, None if number % 5 == 0 else b"\xff%d" % number
            producer.produce(self.dead, value or own, key, partition=number % 2, headers=headers)
        producer.produce(self.dead, b"a stranger's record", partition=0)
        assert producer.flush(WAIT_S) == 0

    def arrived(self) -> list[tuple]:
        """What a reader of committed data finds in the source topic."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "earliest",
             "isolation.level": "read_committed", "enable.partition.eof": True}
        )  # fmt: skip
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(3)])
        found, ends = [], 0
        while ends < 3:
            message = consumer.poll(WAIT_S)
            assert message is not None
            if message.error() is not None:
                ends += 1
                continue
            found.append(
                (message.partition(), message.key(), message.value(), message.headers(), message.timestamp()[1])
            )
        consumer.close()
        return sorted(found, key=lambda one: one[1])

    def expected(self, count: int) -> list[tuple]:
        rows = [
            (
                number % 3,
                b"k%d" % number,
                None if number % 5 == 0 else b"\xff%d" % number,
                [("own", b"%d" % number), ("own", None)],
                1_700_000_000_000 + number,
            )
            for number in range(count)
        ]
        return sorted(rows, key=lambda one: one[1])


@pytest.fixture
def stage(kafka_broker, tmp_path) -> Stage:
    return Stage(kafka_broker.bootstrap, tmp_path)


def test_letters_go_back_as_they_were_and_only_once(stage, capsys):
    stage.put_aside(20)
    command = ["pipeline", "retry-dead", str(stage.file), "--bootstrap", stage.bootstrap, "--json"]
    assert run([*command, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sent": 0, "by_error": {"not JSON": 20}, "homeless": {}}
    assert stage.arrived() == []
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["sent"] == 20
    assert stage.arrived() == stage.expected(20)
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["sent"] == 0
    assert stage.arrived() == stage.expected(20)


def test_some_go_now_and_the_others_later(stage):
    stage.put_aside(6, error="not JSON")
    stage.put_aside(6, error="rejected: negative")
    with closing(DeadLetters(stage.bootstrap, stage.dead)) as letters:
        assert letters.retry(Chosen(stage.name, "REJECTED")).sent == 6
        assert letters.retry(Chosen(stage.name, limit=4)).sent == 4
        assert letters.look(Chosen(stage.name)).by_error == {"not JSON": 2}
        assert letters.retry(Chosen(stage.name)).sent == 2
        assert letters.retry(Chosen("another")).sent == 0
    assert len(stage.arrived()) == 12


def test_letter_as_large_as_its_topic_takes_goes_back(stage):
    """And with it those behind it."""
    entry = ConfigEntry("max.message.bytes", "4000000", incremental_operation=AlterConfigOpType.SET)
    for name in (stage.topic, stage.dead):
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        stage.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    stage.put_aside(1, value=b"x" * 3_000_000)
    stage.put_aside(4)
    with closing(DeadLetters(stage.bootstrap, stage.dead)) as letters:
        assert letters.retry(Chosen(stage.name)).sent == 5
    assert sorted(len(value or b"") for _, _, value, *_ in stage.arrived()) == [0, 2, 2, 2, 3_000_000]


@pytest.mark.parametrize("step", ["_produce", "commit_transaction"])
def test_whoever_dies_midway_leaves_all_of_a_handful_or_nothing(stage, monkeypatch, step):
    """A second process takes the id over while the first one is in the middle, as after a kill -9."""
    monkeypatch.setattr(dead_letters, "LETTERS_PER_TRANSACTION", 5)
    stage.put_aside(20)
    first, second = DeadLetters(stage.bootstrap, stage.dead), DeadLetters(stage.bootstrap, stage.dead)
    sent = []
    send = DeadLetters._send

    def send_until_replaced(self, producer, letters, pipeline, so_far):
        if self is first and so_far == 10:
            sent.append(second.retry(Chosen(stage.name)).sent)
        send(self, producer, letters, pipeline, so_far)

    def replaced_before_the_commit(self, producer, letters, pipeline, so_far):
        if self is not first or so_far != 10:
            send(self, producer, letters, pipeline, so_far)
            return
        producer.begin_transaction()
        for letter in letters:
            self._produce(producer, letter)
        producer.flush(WAIT_S)
        sent.append(second.retry(Chosen(stage.name)).sent)
        try:
            producer.commit_transaction(WAIT_S)
        except Exception as error:
            raise RetryFailed(f"{so_far} dead letters were sent before the error: {error}") from error

    changed = send_until_replaced if step == "_produce" else replaced_before_the_commit
    monkeypatch.setattr(DeadLetters, "_send", changed)
    with closing(first), closing(second), pytest.raises(RetryFailed, match="10 dead letters were sent"):
        first.retry(Chosen(stage.name))
    assert sent == [10]
    assert stage.arrived() == stage.expected(20)


def test_letters_without_a_home_stay(stage, capsys):
    stage.put_aside(3, topic="gone")
    stage.put_aside(3)
    command = ["pipeline", "retry-dead", str(stage.file), "--bootstrap", stage.bootstrap]
    assert run(command) == 3
    said = capsys.readouterr().err
    assert "3 records sent again" in said
    assert "not sent: gone-0 does not exist any more" in said


def test_a_pipeline_without_dead_letters_says_so(stage, capsys):
    stage.file.write_text(stage.file.read_text().partition("dead_letters")[0])
    assert run(["pipeline", "retry-dead", str(stage.file), "--bootstrap", stage.bootstrap]) == 2
    assert "dead_letters: TOPIC" in capsys.readouterr().err
