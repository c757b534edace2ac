"""Which damaged replicas leave a partition to the others."""

from uuid import uuid4

import pytest

from headrace.broker.replication import replica_health
from headrace.core.image.model import TopicImage
from headrace.testing import SimFiles
from tests.unit.broker.start_kit import Machine


async def test_partition_of_a_deleted_topic_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is ahead: the topic was created again, with fewer partitions, before the partitions followed."""
    monkeypatch.setattr(replica_health, "damaged_from", lambda log: 0)
    with SimFiles() as files:
        machine = Machine(files, is_clustered=True)
        broker = await machine.created()
        topic = broker.image.topics["t"]
        broker.image._topics["t"] = TopicImage("t", uuid4(), topic.partitions[:1], {})
        assert broker.membership is not None
        await broker.membership._health.leave_damaged()
        await broker.stop()
        await machine.store.close()
