"""Kafka's verifiable producer and consumers while things are killed: what was acknowledged is consumed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.testing import LocalBroker
from tests.compat.test_transactions import create
from tests.interop.verifiable import RECEIVED, SENT, consumer, holds, producer, values, wait_for_more

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


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_was_acknowledged_is_consumed_although_broker_and_a_member_are_killed(
    broker: LocalBroker, protocol: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stays, dies = (stack.enter_context(consumer(broker.bootstrap, "t", "g", protocol)) for _ in range(2))
        for member in (stays, dies):
            member.wait_for(lambda member=member: len(holds(member)) == PARTITIONS // 2)
        sender = stack.enter_context(producer(broker.bootstrap, "t", tmp_path, a_second=A_SECOND, messages=MESSAGES))
        wait_for_more(stays)
        broker.kill()
        broker.restart()
        wait_for_more(dies)
        dies.kill()
        stays.wait_for(lambda: holds(stays) == set(range(PARTITIONS)))
        sender.wait()
        acked = Counter(values(sender, SENT))
        assert len(acked) == acked.total() == MESSAGES, "everything was acknowledged, and once"
        theirs = set(values(dies, RECEIVED))
        stays.wait_for(lambda: {*values(stays, RECEIVED), *theirs} >= acked.keys())
        stays.terminate()
        assert [one["success"] for one in stays.events if one["name"] == "offsets_committed"][-1]
