"""Apache Kafka's transactional copier, transaction tool and formatter, on our transactions and their log.

The copier speaks `transaction.version` 2: partitions are added by its Produce, and every end bumps its epoch.
"""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.testing import LocalBroker
from tests.compat.test_transactions import create, read
from tests.interop.apache_kafka import tool

pytestmark = pytest.mark.interop

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORDS = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=False, settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        create(running, "source", 1)
        create(running, "target", 2)
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("source", str(number).encode())
        assert producer.flush(30) == 0
        tool(
            COPIER, "--broker-list", running.bootstrap, "--input-topic", "source", "--input-partition", "0",
            "--output-topic", "target", "--transactional-id", "copier", "--consumer-group", "copiers",
            "--transaction-size", "30", "--max-messages", str(RECORDS), "--enable-random-aborts",
        )  # fmt: skip
        yield running


def test_kafkas_copier_copies_exactly_once_although_it_aborts_at_random(broker: LocalBroker) -> None:
    assert sorted(map(int, read(broker, "target"))) == list(range(RECORDS))


def test_kafkas_formatter_reads_our_transaction_log(broker: LocalBroker) -> None:
    output = tool(
        CONSOLE, "--bootstrap-server", broker.bootstrap, "--topic", "__transaction_state", "--from-beginning",
        "--timeout-ms", "4000", "--formatter", FORMATTER,
    )  # fmt: skip
    row, _ = json.JSONDecoder().raw_decode(output.text.strip())
    assert row["key"]["data"] == {"transactionalId": "copier"}
    assert row["value"]["data"]["transactionTimeoutMs"] == 60_000
    assert '"clientTransactionVersion":2' in output.text


def test_kafkas_transaction_tool_lists_and_describes(broker: LocalBroker) -> None:
    for command in (("list",), ("describe", "--transactional-id", "copier")):
        output = tool(TRANSACTIONS, "--bootstrap-server", broker.bootstrap, *command)
        assert "CompleteCommit" in output.text
        assert "copier" in output.text
