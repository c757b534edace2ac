"""Apache Kafka's transactional copier, transaction tool and formatter, on our transactions and their log.

The copier speaks `transaction.version` 2: partitions are added by its Produce, and every end bumps its epoch.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.testing import LocalBroker
from tests.compat.test_transactions import SECONDS_MAX, confluent_producer, create, read
from tests.integration.test_transactions_cli import write_without_coordinator
from tests.interop.apache_kafka import Output, tool
from tests.patience import awaited

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
TRANSACTIONS = "TransactionsCommand"
RECORDS = 300
NODE_ID = "1"
PATIENCE_S = 60.0
# Only without this does a batch get in that no coordinator knows of: what hanging transactions come from.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    settings = {"node.id": NODE_ID, "group.initial.rebalance.delay.ms": "0", **UNVERIFIED}
    with LocalBroker(memory=False, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def copied(broker: LocalBroker) -> LocalBroker:
    """The broker after one run of the copier, which aborts at random and tries again."""
    create(broker, "source", 1)
    create(broker, "target", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(RECORDS):
        producer.produce("source", str(number).encode())
    assert producer.flush(30) == 0
    tool(
        COPIER, "--broker-list", broker.bootstrap, "--input-topic", "source", "--input-partition", "0",
        "--output-topic", "target", "--transactional-id", "copier", "--consumer-group", "copiers",
        "--transaction-size", "30", "--max-messages", str(RECORDS), "--enable-random-aborts",
    )  # fmt: skip
    return broker


def table(output: Output) -> list[dict[str, str]]:
    """Rows by the names of their columns, as the tool prints them: separated by tabs, padded with blanks."""
    head, *rows = [[word.strip() for word in line.split("\t")] for line in output.lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_kafkas_copier_copies_exactly_once_although_it_aborts_at_random(copied: LocalBroker) -> None:
    assert sorted(map(int, read(copied, "target"))) == list(range(RECORDS))


def about_copier(output: Output) -> list[Any]:
    return [row for row in output.objects if row["key"]["data"] == {"transactionalId": "copier"}]


def test_kafkas_formatter_reads_our_transaction_log(copied: LocalBroker, run: Callable[..., Output]) -> None:
    words = ("--topic", "__transaction_state", "--from-beginning", "--timeout-ms", "4000", "--formatter", FORMATTER)
    # A cold JVM may have got none of the 50 partitions when its time is over: it ends with success and says nothing.
    output = awaited(
        lambda: run("consumer.ConsoleConsumer", *words), about_copier, "the formatter to find records", PATIENCE_S
    )
    copiers = about_copier(output)
    values = [row["value"]["data"] for row in copiers]
    assert {value["transactionTimeoutMs"] for value in values} == {60_000}
    assert {row["value"]["version"] for row in copiers} == {1}
    assert '"clientTransactionVersion":2' in output.text


def test_kafkas_transaction_tool_lists_and_describes_what_is_over(
    copied: LocalBroker, run_all: Callable[..., list[Output]]
) -> None:
    listed, described = run_all([TRANSACTIONS, "list"], [TRANSACTIONS, "describe", "--transactional-id", "copier"])
    (row,) = [one for one in table(listed) if one["TransactionalId"] == "copier"]
    assert (row["Coordinator"], row["TransactionState"]) == (NODE_ID, "CompleteCommit")
    (row,) = table(described)
    assert (row["TransactionState"], row["TopicPartitions"]) == ("CompleteCommit", "")


@pytest.fixture
def opened(broker: LocalBroker, topic: str) -> tuple[str, Producer]:
    """A transactional id, and its producer with a transaction open on partition 0 of `topic`."""
    create(broker, topic, 1)
    producer = confluent_producer(broker, f"tx-{topic}")
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(SECONDS_MAX) == 0
    return f"tx-{topic}", producer


def test_an_open_transaction_is_listed_described_and_not_called_hanging(
    run_all: Callable[..., list[Output]], opened: tuple[str, Producer], topic: str
) -> None:
    name, _ = opened
    young, named, described, producers, hanging = (
        table(output)
        for output in run_all(
            [TRANSACTIONS, "list", "--duration-filter", "3600000"],
            [TRANSACTIONS, "list", "--transactional-id-pattern", f"tx-.*{topic[-4:]}"],
            [TRANSACTIONS, "describe", "--transactional-id", name],
            [TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0"],
            [TRANSACTIONS, "find-hanging", "--topic", topic, "--partition", "0", "--max-transaction-timeout", "0"],
        )
    )
    assert young == []
    assert [(row["TransactionalId"], row["TransactionState"]) for row in named] == [(name, "Ongoing")]
    assert [(row["TransactionState"], row["TopicPartitions"]) for row in described] == [("Ongoing", f"{topic}-0")]
    assert [(row["LastSequence"], row["CurrentTransactionStartOffset"]) for row in producers] == [("0", "0")]
    assert hanging == [], "its coordinator knows it"


def test_a_transaction_is_ended_by_force_and_its_producer_fenced(
    broker: LocalBroker, run: Callable[..., Output], opened: tuple[str, Producer], topic: str
) -> None:
    name, producer = opened
    run(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", name)
    (row,) = table(run(TRANSACTIONS, "describe", "--transactional-id", name))
    assert (row["TransactionState"], row["TopicPartitions"]) == ("Empty", "")
    assert read(broker, topic, partitions=1) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS_MAX)


def test_a_hanging_transaction_is_found_and_aborted(
    broker: LocalBroker, run: Callable[..., Output], topic: str
) -> None:
    create(broker, topic, 1)
    start = write_without_coordinator(broker, topic)
    everywhere = [TRANSACTIONS, "find-hanging", "--broker-id", NODE_ID, "--max-transaction-timeout", "0"]
    found = [row for row in table(run(*everywhere)) if row["Topic"] == topic]
    assert [(row["Partition"], row["StartOffset"]) for row in found] == [("0", str(start))]
    run(TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", "--start-offset", str(start))
    assert [row for row in table(run(*everywhere)) if row["Topic"] == topic] == []
    assert read(broker, topic, partitions=1) == [], "the end is reached: nothing holds readers back any more"
