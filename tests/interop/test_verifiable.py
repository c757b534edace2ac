"""Kafka's verifiable producer and consumers while things are killed: what was acknowledged is consumed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.tools import kafka_classpath
from headrace.testing import LocalBroker
from tests.compat.test_transactions import create
from tests.interop.background import Background

TOOLS = "org.apache.kafka.tools."
PARTITIONS = 4
MESSAGES = 6000
A_SECOND = 600  # so that the kills fall into the middle of it

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    # A member that was killed is missed after six seconds, in either protocol.
    settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "6000"}
    settings |= {"group.consumer.min.session.timeout.ms": "6000", "group.consumer.session.timeout.ms": "6000"}
    settings |= {"group.consumer.min.heartbeat.interval.ms": "500", "group.consumer.heartbeat.interval.ms": "500"}
    with LocalBroker(data_dir=tmp_path / "data", settings=settings) as running:
        create(running, "t", PARTITIONS)
        yield running


def producer(broker: LocalBroker, folder: Path) -> Background:
    # By itself the tool never tries again, and reports what met the broker's absence as lost.
    patient = folder / "producer.properties"
    patient.write_text("retries=2147483647\nenable.idempotence=true\n")
    arguments = ["--topic", "t", "--acks", "-1", "--max-messages", str(MESSAGES), "--throughput", str(A_SECOND)]
    arguments += [
        "--repeating-keys",
        "100",
        "--command-config",
        str(patient),
    ]  # keys, so that every partition gets some
    return Background(
        kafka_classpath(), TOOLS + "VerifiableProducer", "--bootstrap-server", broker.bootstrap, *arguments
    )


def consumer(broker: LocalBroker, protocol: str) -> Background:
    arguments = ["--topic", "t", "--group-id", "g", "--group-protocol", protocol, "--verbose"]
    if protocol == "classic":
        arguments += ["--session-timeout", "6000"]
    return Background(
        kafka_classpath(), TOOLS + "VerifiableConsumer", "--bootstrap-server", broker.bootstrap, *arguments
    )


def values(of: Background, event: str) -> list[str]:
    return [one["value"] for one in of.events if one["name"] == event]


def holds(member: Background) -> set[int]:
    """The partitions that it was given and did not give back."""
    held: set[int] = set()
    for one in member.events:
        rows = {row["partition"] for row in one.get("partitions", []) if "partition" in row}
        if one["name"] == "partitions_assigned":
            held |= rows
        elif one["name"] in ("partitions_revoked", "partitions_lost"):
            held -= rows
    return held


def wait_for_more(member: Background) -> None:
    known = len(values(member, "record_data"))
    member.wait_for(lambda: len(values(member, "record_data")) > known)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_was_acknowledged_is_consumed_although_broker_and_a_member_are_killed(
    broker: LocalBroker, protocol: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stays, dies = (stack.enter_context(consumer(broker, protocol)) for _ in range(2))
        for member in (stays, dies):
            member.wait_for(lambda member=member: len(holds(member)) == PARTITIONS // 2)
        sender = stack.enter_context(producer(broker, tmp_path))
        wait_for_more(stays)
        broker.kill()
        broker.restart()
        wait_for_more(dies)
        dies.kill()
        stays.wait_for(lambda: holds(stays) == set(range(PARTITIONS)))
        sender.wait()
        acked = Counter(values(sender, "producer_send_success"))
        assert len(acked) == acked.total() == MESSAGES, "everything was acknowledged, and once"
        theirs = set(values(dies, "record_data"))
        stays.wait_for(lambda: {*values(stays, "record_data"), *theirs} >= acked.keys())
        stays.terminate()
        assert [one["success"] for one in stays.events if one["name"] == "offsets_committed"][-1]
