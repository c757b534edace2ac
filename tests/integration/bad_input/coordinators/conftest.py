"""Requests to coordinators that no client would send: each has a stated answer, nothing leaks, the next is served.

docs/compatibility.md has the table of answers.
"""

from collections.abc import Iterator

import pytest

from headrace.testing import LocalBroker
from tests.integration.bad_input.coordinators.kit import PARTITIONS, Stranger


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """Sessions may be short, so that what a stranger leaves behind is gone soon; they are so only where a test asks."""
    settings = {
        "num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "10",
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.min.session.timeout.ms": "100",
        "group.consumer.session.timeout.ms": "30000",
        "offsets.topic.num.partitions": str(PARTITIONS),
        "transaction.state.log.num.partitions": str(PARTITIONS),
    }
    with LocalBroker(settings=settings) as one:
        with Stranger(one) as first:
            first.find_coordinators()
        yield one


@pytest.fixture
def stranger(broker: LocalBroker) -> Iterator[Stranger]:
    with Stranger(broker) as one:
        yield one
