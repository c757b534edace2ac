"""`headrace groups …` against a real broker with real consumers of both protocols."""

import json
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer

from headrace.cli.common.exit_codes import FAILURE, NOT_FOUND, OK, USAGE
from headrace.cli.main import main
from headrace.testing import LocalBroker

SECONDS_MAX = 30.0
SETTINGS = {
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


@pytest.fixture(scope="module")
def broker():
    with LocalBroker(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def cli(broker, capfd, monkeypatch):
    """Runs a command line against the broker: exit code, stdout, stderr."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def topic(broker):
    """Four records in each of two partitions, the last a minute old."""
    name = f"t{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    now_ms = int(time.time() * 1000)
    for number in range(8):
        producer.produce(name, b"x", partition=number % 2, timestamp=now_ms - 60_000 * (4 - number // 2))
    producer.flush(SECONDS_MAX)
    return name


@pytest.fixture
def group():
    return f"g{uuid.uuid4().hex[:8]}"


@pytest.fixture
def join(broker, group, topic):
    """Consumers of the group; one that is alone has both partitions before it is handed out."""
    joined = []

    def start(protocol: str = "consumer", *, alone: bool = True) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        joined.append(consumer)
        consumer.subscribe([topic])
        if alone:
            wait_for(lambda: consumer.poll(0.1), lambda: len(consumer.assignment()) == 2)
        return consumer

    yield start
    for consumer in joined:
        consumer.close()


def wait_for(step, done):
    deadline = time.monotonic() + SECONDS_MAX
    while not done():
        assert time.monotonic() < deadline, "it happens in time"
        step()


def commit(consumer: Consumer, topic: str, *offsets: int) -> None:
    from confluent_kafka import TopicPartition

    wanted = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    rows = consumer.commit(offsets=wanted, asynchronous=False)
    assert [row.error for row in rows if row.error is not None] == []


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_group_is_listed_and_described_with_its_members(cli, join, group, topic, protocol):
    consumer = join(protocol)
    commit(consumer, topic, 1, 3)
    (listed,) = [row for row in json.loads(cli("groups", "list", "--json")[1]) if row["group"] == group]
    assert listed == {"group": group, "type": protocol, "state": "Stable"}
    (described,) = json.loads(cli("groups", "describe", group, "--json")[1])
    (member,) = described["members"]
    assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert described["lag"] == 4
    assert group in cli("groups", "describe", group)[1]


def test_lag_is_told_in_records_and_in_seconds_also_for_idle_groups(cli, join, group, topic):
    consumer = join()
    commit(consumer, topic, 1, 4)
    consumer.close()
    code, out, err = cli("groups", "offsets", group, "--json")
    assert code == OK, err
    behind, even = json.loads(out)
    assert (behind["committed"], behind["end"], behind["lag"]) == (1, 4, 3)
    assert 170 <= behind["lag_seconds"] <= 240, "the oldest unread record is three minutes old"
    assert (even["lag"], even["lag_seconds"]) == (0, 0.0)
    assert "lag time" in cli("groups", "offsets", group)[1]


def test_offsets_are_reset_to_wherever_one_says(cli, join, group, topic):
    consumer = join()
    commit(consumer, topic, 2, 2)
    code, _, err = cli("groups", "reset", group, "--to", "earliest")
    assert code == FAILURE
    assert "has members" in err
    consumer.close()

    def after(*words):
        code, out, err = cli("groups", "reset", group, "--json", *words)
        assert code == OK, err
        return [row["after"] for row in json.loads(out)]

    assert after("--to", "earliest", "--dry-run") == [0, 0]
    assert [row["committed"] for row in json.loads(cli("groups", "offsets", group, "--json")[1])] == [2, 2]
    assert after("--by", "-1") == [1, 1]
    assert after("--to", "latest") == [4, 4]
    assert after("--to", "3", "--topic", f"{topic}:1") == [3]
    assert after("--to", "150s") == [2, 2], "the first record that is not older"
    assert after("--to", "99") == [4, 4], "never beyond what there is"
    assert cli("groups", "reset", group)[0] == USAGE
    assert cli("groups", "reset", group, "--to", "soon")[0] == USAGE


def test_a_group_is_deleted_once_nobody_uses_it(cli, join, group, topic):
    consumer = join()
    assert cli("groups", "delete", group, "--yes")[0] == FAILURE
    consumer.close()
    assert cli("groups", "delete", group, "--yes")[0] == OK
    for words in (("describe", group), ("offsets", group), ("rebalances", group), ("delete", group, "--yes")):
        assert cli("groups", *words)[0] == NOT_FOUND, words


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_rebalances_are_told_with_their_causes(cli, join, group, topic, protocol):
    first = join(protocol)
    second = join(protocol, alone=False)
    wait_for(
        lambda: (first.poll(0.1), second.poll(0.1)),
        lambda: len(first.assignment()) == len(second.assignment()) == 1,
    )
    second.close()
    wait_for(lambda: first.poll(0.1), lambda: len(first.assignment()) == 2)
    code, out, err = cli("groups", "rebalances", group, "--json")
    assert code == OK, err
    rows = json.loads(out)
    causes = [row["cause"] for row in rows]
    assert "join" in causes[0]
    assert any("lea" in cause or "left" in cause for cause in causes), causes
    left = next(row for row in rows if len(row["members_before"]) == 2 and len(row["members_after"]) == 1)
    assert left["ended_ms"] >= left["began_ms"]
    assert list(left["pauses_ms"]) == left["members_after"]
    assert "cause" in cli("groups", "rebalances", group)[1]
