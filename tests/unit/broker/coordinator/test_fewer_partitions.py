"""Partitions that the metadata no longer has, although it has their topic: no part of a broker may fail over them.

Metadata of an older snapshot knows a topic as it was before partitions were added.
"""

from collections.abc import AsyncIterator

import pytest

from headrace.broker.controller.restored_metadata import late_replicas, raise_leader_epochs
from headrace.broker.replica.partition import Partition
from headrace.broker.replication import replica_health
from headrace.broker.server import Broker
from headrace.testing import SimFiles
from tests.unit.broker.start_kit import Machine


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Every partition looks corrupt, and newer than the metadata."""
    with SimFiles() as files:
        machine = Machine(files, is_clustered=True)
        broker = await machine.created()
        topic = broker.image.topics["t"]
        broker.image._topics["t"] = topic._replace(partitions=topic.partitions[:1])
        with monkeypatch.context() as patched:
            patched.setattr(replica_health, "damaged_from", lambda log: 0)
            patched.setattr(Partition, "is_behind_its_log", True)
            yield broker
        broker.image._topics["t"] = topic
        await broker.stop()
        await machine.store.close()


async def test_corrupt_replica_is_skipped(broker: Broker) -> None:
    assert broker.membership is not None
    await broker.membership._health.leave_damaged()
    assert broker.image.state_of(broker.image.topics["t"].topic_id, 1) is None


async def test_leader_epochs_of_the_others_are_compared(broker: Broker) -> None:
    assert broker.partitions.held("t", 1) is not None
    broker.partitions.get("t", 0).fence()  # else its epoch, too, would have to be raised
    await raise_leader_epochs(broker)


async def test_late_replica_is_skipped(broker: Broker) -> None:
    assert late_replicas(broker) == []
