"""Apache Kafka's own consumer, group tool and formatters, on our groups and on the bytes of our offsets topic."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.testing import LocalBroker
from tests.interop.apache_kafka import tool

pytestmark = pytest.mark.interop

CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 20


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    settings = {"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    with LocalBroker(memory=False, settings=settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t", str(number).encode(), partition=number % 2)
        assert producer.flush(30) == 0
        yield broker.bootstrap


def consume(bootstrap: str, group: str) -> list[dict[str, object]]:
    output = tool(
        CONSUMER, "--bootstrap-server", bootstrap, "--topic", "t", "--group-id", group,
        "--max-messages", str(RECORDS), "--reset-policy", "earliest",
    )  # fmt: skip
    return [json.loads(line) for line in output.lines]


def formatted(bootstrap: str, formatter: str) -> list[dict[str, dict[str, object]]]:
    output = tool(
        CONSOLE, "--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--from-beginning",
        "--timeout-ms", "4000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}",
    )  # fmt: skip
    decoder, text, rows = json.JSONDecoder(), output.text.strip(), []
    while text:
        row, end = decoder.raw_decode(text)
        rows.append(row)
        text = text[end:].lstrip()
    return rows


def test_kafkas_consumer_reads_commits_and_leaves(bootstrap: str) -> None:
    events = consume(bootstrap, "reader")
    committed = [one for one in events if one["name"] == "offsets_committed"]
    assert committed
    assert all(one["success"] for one in committed)
    described = tool(GROUPS, "--bootstrap-server", bootstrap, "--describe", "--group", "reader")
    rows = [line.split() for line in described.lines if line.startswith("reader")]
    assert sorted(row[1:6] for row in rows) == [["t", "0", "10", "10", "0"], ["t", "1", "10", "10", "0"]]


def test_kafkas_formatters_read_our_offsets_topic(bootstrap: str) -> None:
    consume(bootstrap, "written")
    rows = [row for row in formatted(bootstrap, "OffsetsMessageFormatter") if row["key"]["data"]["group"] == "written"]  # type: ignore[index]
    offsets = {row["key"]["data"]["partition"]: row["value"]["data"]["offset"] for row in rows}  # type: ignore[index]
    assert offsets == {0: 10, 1: 10}
    rows = [
        row
        for row in formatted(bootstrap, "GroupMetadataMessageFormatter")
        if row["key"]["data"]["group"] == "written"  # type: ignore[index]
    ]
    generations = [(row["value"]["data"]["generation"], len(row["value"]["data"]["members"])) for row in rows]  # type: ignore[index]
    assert generations == [(1, 1), (2, 0)]


def test_kafkas_group_tool_resets_and_deletes(bootstrap: str) -> None:
    consume(bootstrap, "gone")
    tool(
        GROUPS, "--bootstrap-server", bootstrap, "--group", "gone", "--topic", "t",
        "--reset-offsets", "--to-offset", "1", "--execute",
    )  # fmt: skip
    described = tool(GROUPS, "--bootstrap-server", bootstrap, "--describe", "--group", "gone")
    assert [line.split()[3] for line in described.lines if line.startswith("gone")] == ["1", "1"]
    tool(GROUPS, "--bootstrap-server", bootstrap, "--group", "gone", "--delete")
    listed = tool(GROUPS, "--bootstrap-server", bootstrap, "--list")
    assert "gone" not in listed.lines
