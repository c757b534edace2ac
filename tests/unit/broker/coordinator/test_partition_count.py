"""Partitions of coordinators that cannot be opened or read: the broker starts, and other partitions are served."""

import asyncio
from typing import Any, cast

import pytest

from headrace.broker.coordinator.loader import CoordinatorLoader
from headrace.broker.coordinator.runtime import REPLAY_RETRY_S, CoordinatorRuntime
from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.core.controller.topic_control import NewTopic
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.model.errors import StorageError
from headrace.testing import SimFiles
from headrace.testing.simulation.loop import SimLoop
from tests.unit.broker.coordinator.test_append_failures import SimBroker, run
from tests.unit.broker.coordinator.test_runtime import FakePartition, Notebook
from tests.unit.broker.start_kit import Machine


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
async def test_start_succeeds_with_unopened_partition(topic: str) -> None:
    with SimFiles() as files:
        machine = Machine(files)
        broker = await machine.started()
        await broker.controller.create_topics([NewTopic(topic, 2, 1)])
        await broker.stop()
        files.fail("list", path=f"/data/{topic}-0", sticks=True)
        broker = await machine.started()
        coordinator = broker._groups if topic == OFFSETS_TOPIC else broker._transactions
        assert coordinator is not None
        assert [shard.partition.index for shard in coordinator.runtime.shards()] == [1]
        await broker.stop()


@pytest.mark.parametrize("error", [StorageError("EIO"), ZeroDivisionError()])
def test_failed_replay_is_retried(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop()
    attempts = 0

    async def replay(self: CoordinatorLoader) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise error

    monkeypatch.setattr(CoordinatorLoader, "run", replay)

    async def main() -> None:
        partition = FakePartition()
        partition.log_end_offset = 1
        runtime = CoordinatorRuntime[Any](cast(Broker, SimBroker(loop)), "__notes", Notebook)
        runtime.lead(cast(Partition, partition))
        await asyncio.sleep(1)
        assert not runtime.shards()
        await asyncio.sleep(2 * REPLAY_RETRY_S)
        assert len(runtime.shards()) == 1
        await asyncio.sleep(10 * REPLAY_RETRY_S)
        assert attempts == 3

    run(loop, main())
