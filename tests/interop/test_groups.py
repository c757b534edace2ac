"""Apache Kafka's own consumer, group tool and formatters, on our groups and on the bytes of our offsets topic."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicCollection

from bench.tools import kafka_classpath
from headrace.client.librdkafka import make_admin
from headrace.testing import LocalBroker
from tests.interop.apache_kafka import Output, tool
from tests.interop.background import Background
from tests.patience import awaited

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "consumer.group.ConsumerGroupCommand"
RECORDS = 20
PROTOCOLS = ("classic", "consumer")
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    settings = {"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    with LocalBroker(memory=False, settings=settings) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t", str(number).encode(), partition=number % 2)
        assert producer.flush(30) == 0
        yield running


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def group(protocol: str, topic: str) -> str:
    """A name that nobody else has."""
    return f"{protocol}-{topic}"


def arguments(broker: LocalBroker, group: str, protocol: str) -> list[str]:
    return [
        "--bootstrap-server", broker.bootstrap, "--topic", "t", "--group-id", group, "--group-protocol", protocol,
        "--reset-policy", "earliest",
    ]  # fmt: skip


def consume(broker: LocalBroker, group: str, protocol: str) -> list[dict[str, object]]:
    """A member comes, reads everything, commits and leaves."""
    output = tool(CONSUMER, *arguments(broker, group, protocol), "--max-messages", str(RECORDS))
    return [json.loads(line) for line in output.lines]


def rows(output: Output, group: str) -> list[list[str]]:
    """The words of each row about the group, without its name, in order of topic and partition."""
    return sorted(line.split()[1:] for line in output.lines if line.split()[:1] == [group])


def test_kafkas_consumer_reads_commits_and_leaves(
    broker: LocalBroker, run: Callable[..., Output], group: str, protocol: str
) -> None:
    events = consume(broker, group, protocol)
    assert "shutdown_complete" in {one["name"] for one in events}
    committed = [one for one in events if one["name"] == "offsets_committed"]
    assert committed
    assert all(one["success"] for one in committed)
    described = rows(run(GROUPS, "--describe", "--group", group), group)
    assert [row[:5] for row in described] == [["t", "0", "10", "10", "0"], ["t", "1", "10", "10", "0"]]


def test_a_living_group_is_listed_and_described_and_cannot_be_reset_or_deleted(
    broker: LocalBroker, run: Callable[..., Output], run_all: Callable[..., list[Output]], group: str, protocol: str
) -> None:
    with Background(kafka_classpath(), CONSUMER, *arguments(broker, group, protocol)) as member:
        member.wait_for(lambda: any(one["name"] == "offsets_committed" for one in member.events))
        members, state, offsets, states, types, reset, delete = run_all(
            [GROUPS, "--describe", "--group", group, "--members", "--verbose"],
            [GROUPS, "--describe", "--group", group, "--state"],
            [GROUPS, "--describe", "--group", group, "--offsets"],
            [GROUPS, "--list", "--state", "stable"],
            [GROUPS, "--list", "--type", protocol],
            [GROUPS, "--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute"],
            [GROUPS, "--delete", "--group", group],
        )
        (row,) = rows(members, group)
        assert row[1:4] == ["/127.0.0.1", f"consumer-{group}-1", "2"]
        assert row[4:] == (["-", "t:0,1", "-", "-"] if protocol == "classic" else ["1", "t:0,1", "1", "t:0,1"])
        assigned_by = "range" if protocol == "classic" else "uniform"
        assert rows(state, group) == [[broker.bootstrap, "(1)", assigned_by, "Stable", "1"]]
        assert [one[:5] for one in rows(offsets, group)] == [["t", "0", "10", "10", "0"], ["t", "1", "10", "10", "0"]]
        assert rows(states, group) == [["Stable"]]
        assert rows(types, group) == [[protocol.capitalize()]]
        assert f"only be reset if the group '{group}' is inactive, but the current state is Stable" in reset.text
        assert "GroupNotEmptyException" in delete.text
        member.terminate()
        assert member.events[-1]["name"] == "shutdown_complete"
    assert rows(run(GROUPS, "--list", "--state"), group) == [["Empty"]]


def test_offsets_are_reset_in_every_way(
    broker: LocalBroker, run: Callable[..., Output], group: str, protocol: str, tmp_path: Path
) -> None:
    consume(broker, group, protocol)

    def reset(*how: str) -> list[list[str]]:
        return rows(run(GROUPS, "--reset-offsets", "--group", group, *how), group)

    assert reset("--all-topics", "--to-earliest", "--dry-run") == [["t", "0", "0"], ["t", "1", "0"]]
    assert reset("--topic", "t:1", "--shift-by", "-4", "--execute") == [["t", "1", "6"]], "a dry run changes nothing"
    assert reset("--topic", "t", "--to-offset", "3", "--execute") == [["t", "0", "3"], ["t", "1", "3"]]
    assert reset("--all-topics", "--to-current", "--dry-run") == [["t", "0", "3"], ["t", "1", "3"]]
    past = ["--to-datetime", "2020-01-01T00:00:00.000"]
    assert reset("--all-topics", *past, "--dry-run") == [["t", "0", "0"], ["t", "1", "0"]]
    assert reset("--all-topics", "--by-duration", "PT0S", "--dry-run") == [["t", "0", "10"], ["t", "1", "10"]]
    plan = tmp_path / "plan.csv"
    plan.write_text("t,0,2\nt,1,8\n")
    assert reset("--from-file", str(plan), "--execute") == [["t", "0", "2"], ["t", "1", "8"]]
    lag = [row[:5] for row in rows(run(GROUPS, "--describe", "--group", group), group)]
    assert lag == [["t", "0", "2", "10", "8"], ["t", "1", "8", "10", "2"]]


def test_offsets_and_groups_are_deleted(
    broker: LocalBroker, run: Callable[..., Output], group: str, protocol: str
) -> None:
    consume(broker, group, protocol)
    run(GROUPS, "--delete-offsets", "--group", group, "--topic", "t:0")
    assert [row[:2] for row in rows(run(GROUPS, "--describe", "--group", group), group)] == [["t", "1"]]
    run(GROUPS, "--delete", "--group", group)
    assert group not in run(GROUPS, "--list").lines


def formatted(broker: LocalBroker, formatter: str, group: str) -> list[Any]:
    """What the formatter makes of the records about the group."""
    output = tool(
        CONSOLE, "--bootstrap-server", broker.bootstrap, "--topic", "__consumer_offsets", "--from-beginning",
        "--timeout-ms", "4000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}",
    )  # fmt: skip
    return [row for row in output.objects if row["key"]["data"]["group"] == group]


def formatted_some(broker: LocalBroker, formatter: str, group: str) -> list[Any]:
    """The same where there must be some: a cold JVM may have got none of the 50 partitions when its time is over, and
    then the tool ends with success and says nothing."""
    what = f"{formatter} to find records of {group}"
    return awaited(lambda: formatted(broker, formatter, group), bool, what, PATIENCE_S)


def test_kafkas_formatters_read_our_offsets_topic(broker: LocalBroker, group: str, protocol: str) -> None:
    consume(broker, group, protocol)
    ours = formatted_some(broker, "OffsetsMessageFormatter", group)
    assert {row["key"]["data"]["partition"]: row["value"]["data"]["offset"] for row in ours} == {0: 10, 1: 10}
    admin = make_admin(broker.bootstrap)
    described_topic = admin.describe_topics(TopicCollection(["t"]))["t"].result(30)
    topic_id = str(described_topic.topic_id).replace("+", "-").replace("/", "_")  # as Kafka writes base64
    assert {(row["value"]["version"], row["value"]["data"]["topicId"]) for row in ours} == {(4, topic_id)}
    described = (formatted_some if protocol == "classic" else formatted)(broker, "GroupMetadataMessageFormatter", group)
    values = [row["value"]["data"] for row in described]
    generations = [(value["generation"], len(value["members"])) for value in values]
    assert generations == ([(1, 1), (2, 0)] if protocol == "classic" else []), "the new protocol has other records"


def test_kafkas_log_reader_decodes_every_record_of_our_offsets_topic(
    broker: LocalBroker, group: str, protocol: str
) -> None:
    consume(broker, group, protocol)
    logs = sorted(Path(broker.data_dir).glob("__consumer_offsets-*/*.log"))
    written = [str(log) for log in logs if log.stat().st_size]
    dumped = tool("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", ",".join(written)).text
    kinds = set(re.findall(rf'"type":"(\d+)","data":{{[^}}]*"{re.escape(group)}"', dumped))
    # Commit and group; or commit, group, member, target of group and member, what the member holds.
    assert kinds == ({"1", "2"} if protocol == "classic" else {"1", "3", "5", "6", "7", "8"})
