"""Coordinator epochs of markers: one from outside never keeps a coordinator from ending its transactions."""

import asyncio
from typing import Any

import pytest

from headrace.broker.coordinator.transaction_marker_manager import Outcome
from headrace.core.controller.leader_election import led_above
from headrace.core.coordinator import partition_for
from headrace.core.image import records
from headrace.core.image.model import PartitionRegistration
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.transaction.metadata import TransactionState
from headrace.model.errors import CoordinatorFenced, ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.control import ControlType, EndMarker
from headrace.storage.log_types import Producer
from tests.unit.broker.connection_kit import until
from tests.unit.broker.handlers.handler_kit import HandlerKit
from tests.unit.broker.handlers.transaction.test_transactions import TX, add, completed, end, init, write
from tests.unit.broker.handlers.transaction.test_write_txn_markers import codes

INT32_MAX = 2**31 - 1
NOT_FENCING = [INT32_MAX, 1000, -1, -(2**31)]


def poison(kit: HandlerKit, owner: tuple[int, int], epoch: int) -> None:
    """A marker that a broker without the upper bound accepted."""
    kit.partition("t").append_marker(
        EndMarker(ControlType.ABORT, epoch), Producer(*owner), kit.clock.wall_ms(), uses_tv2=False
    )


async def set_epoch(kit: HandlerKit, index: int, epoch: int) -> None:
    """Another leader epoch of a partition of `__transaction_state`, lower ones as from restored metadata."""
    topic = kit.image.topics[TRANSACTIONS_TOPIC]
    states = list(topic.partitions)
    states[index] = states[index]._replace(leader_epoch=epoch, partition_epoch=states[index].partition_epoch + 1)
    await kit.controller._facts._store.commit({}, records.block_writes(topic.topic_id, states, [index]))
    await kit.controller.catch_up()


def own_index(kit: HandlerKit) -> int:
    return partition_for(TX, len(kit.image.topics[TRANSACTIONS_TOPIC].partitions))


async def begin(kit: HandlerKit) -> tuple[int, int]:
    await kit.create("t")
    code, *identity = await init(kit)
    assert code == 0
    return identity[0], identity[1]


async def assert_commits(kit: HandlerKit, owner: tuple[int, int], version: int) -> None:
    assert (await add(kit, owner, ("t", 0))) == {("t", 0): 0}
    offset = write(kit, owner)
    assert (await end(kit, owner, version=version))[0] == 0
    assert await completed(kit) is TransactionState.COMPLETE_COMMIT
    partition = kit.partition("t")
    assert partition.last_stable_offset == partition.log_end_offset > offset
    assert not partition.log.producers.get(owner[0]).txn_first_offset  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("epoch", NOT_FENCING)
async def test_marker_with_impossible_epoch_is_rejected(kit: HandlerKit, epoch: int, version: int) -> None:
    owner = await begin(kit)
    end_before = kit.partition("t").log_end_offset
    got = await codes(kit, "t", producer_id=owner[0], producer_epoch=owner[1], coordinator_epoch=epoch)
    assert got == [ErrorCode.INVALID_REQUEST]
    assert kit.partition("t").log_end_offset == end_before
    await assert_commits(kit, owner, version)


@pytest.mark.parametrize("epoch", NOT_FENCING)
async def test_marker_for_unknown_producer_is_bounded_too(kit: HandlerKit, epoch: int) -> None:
    """No topic `__transaction_state`: only epoch 0 can be right, which administrators send."""
    await kit.create("t")
    assert await codes(kit, "t", coordinator_epoch=epoch) == [ErrorCode.INVALID_REQUEST]
    assert await codes(kit, "t", coordinator_epoch=0) == [0]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("epoch", [INT32_MAX, 1000])
async def test_log_with_impossible_epoch_takes_markers(kit: HandlerKit, epoch: int, version: int) -> None:
    owner = await begin(kit)
    poison(kit, owner, epoch)
    await assert_commits(kit, owner, version)


@pytest.mark.parametrize("version", [4, 5])
async def test_fenced_coordinator_that_leads_completes_in_a_new_epoch(kit: HandlerKit, version: int) -> None:
    """The epoch is one that another partition of the topic has, so it cannot be told from a real one."""
    owner = await begin(kit)
    index = own_index(kit)
    other = (index + 1) % len(kit.image.topics[TRANSACTIONS_TOPIC].partitions)
    await set_epoch(kit, other, 9)
    assert await codes(kit, "t", producer_id=owner[0], producer_epoch=owner[1], coordinator_epoch=7) == [0]
    isr = kit.image.topics[TRANSACTIONS_TOPIC].partitions[index].isr
    await assert_commits_after_reload(kit, owner, version)
    state = kit.image.topics[TRANSACTIONS_TOPIC].partitions[index]
    assert (state.leader, state.isr, state.leader_epoch) == (kit.node_id, isr, 10)


async def assert_commits_after_reload(kit: HandlerKit, owner: tuple[int, int], version: int) -> None:
    await add(kit, owner, ("t", 0))
    write(kit, owner)
    assert (await end(kit, owner, version=version))[0] == 0
    runtime = kit.transactions.runtime
    while runtime._completions or runtime._loads:
        for task in [*runtime._completions.values(), *runtime._loads]:
            await task
    assert kit.transactions.describe(TX).state is TransactionState.COMPLETE_COMMIT
    assert kit.partition("t").last_stable_offset == kit.partition("t").log_end_offset


async def test_administrator_aborts_with_the_epoch_of_the_partition(kit: HandlerKit) -> None:
    """kafka-transactions sends the epoch that DescribeProducers returned, or 0; the topic may be re-created since."""
    await kit.create("t")
    poison(kit, (77, 0), 40)
    write(kit, (77, 0))
    assert await codes(kit, "t", coordinator_epoch=41) == [ErrorCode.INVALID_REQUEST]
    assert await codes(kit, "t", coordinator_epoch=40) == [0]
    assert kit.partition("t").last_stable_offset == kit.partition("t").log_end_offset
    write(kit, (77, 0), sequence=1)
    assert await codes(kit, "t", coordinator_epoch=0) == [0], "40 is no epoch of any coordinator by now"


async def test_marker_of_an_older_coordinator_is_fenced(kit: HandlerKit) -> None:
    await begin(kit)
    await set_epoch(kit, own_index(kit), 9)
    assert await codes(kit, "t", coordinator_epoch=9) == [0]
    assert await codes(kit, "t", coordinator_epoch=8) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert await codes(kit, "t", coordinator_epoch=10) == [ErrorCode.INVALID_REQUEST]


async def test_offsets_partition_has_the_same_bound(kit: HandlerKit) -> None:
    await begin(kit)
    await kit.groups.leader_of("g")
    fields: dict[str, Any] = {"coordinator_epoch": 1000}
    assert await codes(kit, OFFSETS_TOPIC, **fields) == [ErrorCode.INVALID_REQUEST]


def test_only_the_leader_of_an_older_epoch_begins_a_new_one() -> None:
    state = PartitionRegistration((1, 2, 3), (1, 2), 1, 4, 9)
    assert led_above(state, 1, 9) == state._replace(leader_epoch=10, partition_epoch=10)
    assert led_above(state, 2, 9) is state, "a coordinator that was replaced"
    assert led_above(state, 1, 3) is state, "another request has raised it"


async def test_fenced_coordinator_that_was_replaced_writes_no_completion(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await begin(kit)
    await add(kit, owner, ("t", 0))
    write(kit, owner)
    runtime, index = kit.transactions.runtime, own_index(kit)
    shard = runtime.shard(index)
    before = shard.partition.log_end_offset

    async def fenced(place: TopicPartition, outcome: Outcome) -> None:
        runtime.resign(index)
        raise CoordinatorFenced("a marker of a newer coordinator epoch")

    monkeypatch.setattr(runtime.markers, "write", fenced)
    assert (await end(kit, owner))[0] == 0
    await runtime.completed(TX, 5)
    assert shard.partition.log_end_offset == before + 1, "PREPARE only"
    assert shard.machine.describe(TX).state is TransactionState.PREPARE_COMMIT


async def test_close_ends_completions_of_earlier_leader_epochs(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await begin(kit)
    await add(kit, owner, ("t", 0))
    write(kit, owner)
    runtime, index = kit.transactions.runtime, own_index(kit)
    writing: list[asyncio.Task[Any]] = []

    async def never(place: TopicPartition, outcome: Outcome) -> None:
        task = asyncio.current_task()
        assert task is not None
        writing.append(task)
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(runtime.markers, "write", never)
    assert (await end(kit, owner))[0] == 0
    await until(lambda: len(writing) == 1)
    await set_epoch(kit, index, 5)
    await until(lambda: len(writing) == 2)
    await runtime.close()
    assert all(task.done() for task in writing)
