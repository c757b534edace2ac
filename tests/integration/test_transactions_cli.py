"""`headrace transactions …` against a real broker with real producers."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.cli.common.exit_codes import NOT_FOUND, OK, USAGE
from headrace.cli.main import main
from headrace.client.sync.transport import Connection
from headrace.testing import LocalBroker

SECONDS_MAX = 30.0
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"num.partitions": "1", "transaction.partition.verification.enable": "false"}) as running:
        yield running


@pytest.fixture
def cli(broker: LocalBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line against the broker: exit code, stdout, stderr."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def opened(broker: LocalBroker) -> tuple[str, str, Any]:
    """A transactional id, a topic, and the producer that has a transaction open there."""
    name, topic = f"tx-{uuid4().hex[:8]}", f"t-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(SECONDS_MAX)
    return name, topic, producer


def test_open_transactions_are_listed_and_described(cli: Run, opened: tuple[str, str, Any]) -> None:
    name, topic, _ = opened
    code, out, _ = cli("transactions", "list", "--state", "Ongoing", "--json")
    assert code == OK
    assert name in {row["transactional_id"] for row in json.loads(out)}
    code, out, _ = cli("transactions", "describe", name, "--json")
    assert code == OK
    (row,) = json.loads(out)
    assert (row["state"], row["partitions"], row["timeout_ms"]) == ("Ongoing", [[topic, 0]], 60_000)
    code, out, _ = cli("transactions", "list", "--longer-than", "3600")
    assert (code, name in out) == (OK, False)


def test_an_abort_ends_the_transaction_and_fences_its_producer(cli: Run, opened: tuple[str, str, Any]) -> None:
    name, _, producer = opened
    assert cli("transactions", "abort", name, "--yes")[0] == OK
    code, out, _ = cli("transactions", "describe", name)
    assert code == OK
    assert "Empty" in out
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS_MAX)


def test_what_is_not_there_is_said_so(cli: Run) -> None:
    assert cli("transactions", "describe", "no-such-id")[0] == NOT_FOUND
    assert cli("transactions", "abort", "no-such-id", "--yes")[0] == NOT_FOUND
    assert cli("transactions", "abort", "--yes")[0] == USAGE
    assert cli("transactions", "find-hanging", "--topic", "no-such-topic")[0] == NOT_FOUND


def test_a_transaction_that_no_coordinator_knows_is_found_and_ended(
    cli: Run, broker: LocalBroker, opened: tuple[str, str, Any]
) -> None:
    _, topic, producer = opened
    producer.commit_transaction(SECONDS_MAX)
    start = write_without_coordinator(broker, topic)
    code, out, _ = cli("transactions", "find-hanging", "--topic", topic, "--older-than", "0", "--json")
    assert code == OK
    assert [(row["topic"], row["start_offset"]) for row in json.loads(out)] == [(topic, start)]
    assert cli("transactions", "abort", "--topic", topic, "--start", start, "--yes")[0] == OK
    code, out, _ = cli("transactions", "find-hanging", "--topic", topic, "--older-than", "0", "--json")
    assert json.loads(out) == []


def write_without_coordinator(broker: LocalBroker, topic: str) -> int:
    """A batch that was held up until its transaction was long over; only without verification does it get in."""
    from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
    from kio.schema.produce.v9.response import ProduceResponse
    from kio.schema.types import TopicName, TransactionalId
    from kio.static.primitive import i16, i32, i32Timedelta

    from headrace.records.builder import NewRecord, build_batch

    batch = build_batch(
        [NewRecord(1_000, None, b"late")], producer_id=12345, producer_epoch=0, base_sequence=0, transactional=True
    )
    request = ProduceRequest(
        transactional_id=TransactionalId("ghost"),
        acks=i16(-1),
        timeout=i32Timedelta.parse(timedelta(seconds=5)),
        topic_data=(
            TopicProduceData(
                name=TopicName(topic), partition_data=(PartitionProduceData(index=i32(0), records=batch),)
            ),
        ),
    )
    host, _, port = broker.bootstrap.rpartition(":")
    with Connection(host, int(port), SECONDS_MAX) as connection:
        (row,) = connection.call(request, ProduceResponse).responses[0].partition_responses
    assert not row.error_code
    return row.base_offset
