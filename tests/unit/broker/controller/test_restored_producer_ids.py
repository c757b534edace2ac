"""Blocks of producer ids after the metadata store was restored: no id that a log knows is given out again."""

import asyncio

import pytest

from headrace.broker.controller import restored_metadata
from headrace.broker.server import Broker
from headrace.core.controller import cluster_control
from headrace.core.controller.restored_metadata import PRODUCER_ID_JUMP, PRODUCER_ID_MAX, raise_producer_ids
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.store import Conflict
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.testing import SimFiles
from tests.unit.broker.handlers.handler_kit import HandlerKit
from tests.unit.broker.handlers.transaction.test_transactions import TX, init
from tests.unit.broker.start_kit import Machine
from tests.unit.storage.log_kit import batch_of
from tests.unit.storage.producer.test_producer_state_manager import batch


def image_with(next_id: int) -> MetadataImage:
    image = MetadataImage()
    image.apply(1, {records.PRODUCER_IDS: records.encode_producer_ids(next_id, 0)})
    return image


@pytest.mark.parametrize("used", [-1, 0, 999, PRODUCER_ID_MAX + 1, 2**63 - 1])
def test_producer_id_below_the_next_block_or_made_up_raises_nothing(used: int) -> None:
    assert raise_producer_ids(image_with(1000), used).writes == {}


@pytest.mark.parametrize("used", [1000, 5000, PRODUCER_ID_MAX])
def test_producer_id_of_a_log_raises_the_next_block(used: int) -> None:
    image = image_with(1000)
    image.apply(2, raise_producer_ids(image, used).writes)
    assert image.next_producer_id == image.producer_id_floor == used + PRODUCER_ID_JUMP
    decision = cluster_control.next_producer_ids(image)
    image.apply(3, decision.writes)
    assert decision.row.first == image.producer_id_floor == used + PRODUCER_ID_JUMP, "later blocks keep the floor"
    assert raise_producer_ids(image, used).writes == {}


def test_made_up_producer_id_does_not_hide_those_of_brokers() -> None:
    states = ProducerStateManager()
    assert states.highest_id(100) == -1
    for at, producer in enumerate((7, 40, 101)):
        states.applied(batch(0, at=at, pid=producer))
    assert states.highest_id(100) == 40
    assert states.highest_id(200) == 101


async def restore(store: MemoryStore, broker: Broker | HandlerKit) -> None:
    await store.commit({}, {records.PRODUCER_IDS: records.encode_producer_ids(0, 0)})
    await broker.controller.catch_up()


@pytest.mark.parametrize("is_clustered", [False, True])
@pytest.mark.parametrize("is_stopped_cleanly", [True, False])
async def test_started_broker_gives_out_no_producer_id_of_its_logs(
    is_clustered: bool, is_stopped_cleanly: bool
) -> None:
    machine = Machine(SimFiles(), is_clustered=is_clustered)
    broker = await machine.created()
    ids = [await broker.producer_ids.take() for _ in range(3)]
    partition = broker.partitions.get("t", 1)
    for one in ids:
        data = batch_of(["x"], producer_id=one, producer_epoch=0, base_sequence=0)
        partition.append(memoryview(bytearray(data)), -1, 0)
        machine.commit(broker)
    await restore(machine.store, broker)
    await (broker.stop() if is_stopped_cleanly else machine.kill())
    broker = await machine.started()
    fresh = await broker.producer_ids.take()
    assert fresh > max(ids)
    data = memoryview(bytearray(batch_of(["y"], producer_id=fresh, producer_epoch=0, base_sequence=0)))
    assert broker.partitions.get("t", 1).append(data, -1, 0).base_offset == 3, "the batch is no duplicate"
    machine.commit(broker)
    await broker.stop()


async def test_start_without_restore_commits_no_producer_ids() -> None:
    machine = Machine(SimFiles())
    broker = await machine.created()
    one = await broker.producer_ids.take()
    data = batch_of(["x"], producer_id=one, producer_epoch=0, base_sequence=0)
    broker.partitions.get("t", 0).append(memoryview(bytearray(data)), -1, 0)
    machine.commit(broker)
    version = broker.image.version_of(records.PRODUCER_IDS)
    await broker.stop()
    broker = await machine.started()
    assert broker.image.version_of(records.PRODUCER_IDS) == version
    assert broker.image.producer_id_floor == 0
    await broker.stop()


async def test_conflict_while_producer_ids_are_raised_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restored_metadata, "RETRY_S", 0)
    machine = Machine(SimFiles(), is_clustered=True)
    broker = await machine.created()
    data = batch_of(["x"], producer_id=5, producer_epoch=0, base_sequence=0)
    broker.partitions.get("t", 0).append(memoryview(bytearray(data)), -1, 0)
    machine.commit(broker)
    raise_once = broker.controller.raise_producer_ids
    failures = [Conflict("/x")]

    async def fail_first(used: int) -> None:
        if failures:
            raise failures.pop()
        await raise_once(used)

    monkeypatch.setattr(broker.controller, "raise_producer_ids", fail_first)
    await restored_metadata.raise_producer_ids(broker)
    assert broker.image.next_producer_id > 5
    await broker.stop()


async def test_rest_of_a_block_below_the_floor_is_dropped() -> None:
    kit = await HandlerKit().start()
    first = await kit.producer_ids.take()
    await kit.controller.raise_producer_ids(5000)
    second, third = await kit.producer_ids.take(), await kit.producer_ids.take()
    assert (first, second, third) == (0, 5000 + PRODUCER_ID_JUMP, 5001 + PRODUCER_ID_JUMP)
    await kit.close()


async def test_transaction_log_raises_producer_ids_before_it_is_served() -> None:
    kit = await HandlerKit(transaction_state_log_num_partitions="1").start()
    _, old, _ = await init(kit)
    await restore(kit.store, kit)
    runtime = kit.transactions.runtime
    partition = runtime.shard_for(TX).partition
    runtime.resign(partition.index)
    runtime.lead(partition)
    assert not runtime.led()[0].is_loaded
    await asyncio.gather(*runtime._loads)
    assert runtime.led()[0].is_loaded
    assert kit.image.producer_id_floor > old
    assert await kit.producer_ids.take() > old
    assert runtime.shard_for(TX).machine.highest_producer_id() == old
    await kit.close()
