"""DeleteRecords, OffsetForLeaderEpoch, DescribeProducers and InitProducerId."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headrace.broker.replica.partition import Partition
from headrace.core.image.model import PartitionRegistration
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit


async def delete_records(
    kit: HandlerKit, offset: int, topic: str = "t", index: int = 0, version: int = 2, **fields: Any
) -> Any:
    asked = [{"name": topic, "partitions": [{"partition_index": index, "offset": offset}]}]
    answer = await kit.ask(ApiKey.DELETE_RECORDS, version, topics=asked, **fields)
    (row,) = answer.topics[0].partitions
    return row.error_code.value, row.low_watermark


@pytest.mark.parametrize("version", range(3))
async def test_records_before_an_offset_are_deleted(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    assert await delete_records(kit, 2, version=version) == (0, 2)
    assert kit.partition("t").log_start_offset == 2


async def test_minus_one_deletes_up_to_the_high_watermark(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    assert await delete_records(kit, -1) == (0, 3)


async def test_deleting_again_keeps_the_start_where_it_is(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    assert await delete_records(kit, 2) == (0, 2)
    assert await delete_records(kit, 1) == (0, 2)


@pytest.mark.parametrize("offset", [4, -2])
async def test_offsets_outside_of_the_log_are_refused(kit: HandlerKit, offset: int) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    assert await delete_records(kit, offset) == (1, -1)


async def test_records_whose_commit_does_not_come_in_time_are_not_deleted(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    kit.partition("t").high_watermark = 1
    assert await delete_records(kit, 3) == (7, -1)
    assert await delete_records(kit, 4) == (1, -1)
    assert await delete_records(kit, -1) == (0, 1)


async def test_who_may_not_delete_records_does_not_make_the_broker_wait(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    kit.partition("t").high_watermark = 1
    kit.authorizer = DenyAll()
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    waiting = asyncio.create_task(kit.ask(ApiKey.DELETE_RECORDS, topics=asked, timeout=60_000))
    await asyncio.sleep(0)
    assert not kit.partition("t").waiters.appends
    assert (await waiting).topics[0].partitions[0].error_code.value == 29


async def test_compacted_topics_keep_their_records(kit: HandlerKit) -> None:
    await kit.create("t", cleanup_policy="compact")
    assert await delete_records(kit, 0) == (44, -1)


async def test_rule_16_records_of_a_partition_elsewhere_are_not_deleted_here(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.partition("t").follow(PartitionRegistration((2, 1), (2, 1), 2, 6, 2))
    assert await delete_records(kit, 0) == (6, -1)
    assert await delete_records(kit, 0, index=5) == (3, -1)
    assert await delete_records(kit, 0, topic="__consumer_offsets") == (17, -1)


async def test_deleting_records_needs_permission(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a")
    kit.authorizer = DenyAll()
    assert await delete_records(kit, 1) == (29, -1)
    assert kit.partition("t").log_start_offset == 0


async def epoch_end(kit: HandlerKit, epoch: int, version: int = 4, current: int = -1, topic: str = "t") -> Any:
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    answer = await kit.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": topic, "partitions": [partition]}]
    )
    (row,) = answer.topics[0].partitions
    return row.error_code.value, row.leader_epoch, row.end_offset


@pytest.mark.parametrize("version", range(2, 5))
async def test_rule_18_the_largest_epoch_not_above_the_asked_one_is_told_with_its_end(
    kit: HandlerKit, version: int
) -> None:
    await kit.create("t")
    partition = kit.partition("t")
    for epoch, values in [(3, "ab"), (5, "cde"), (9, "f")]:
        partition.follow(PartitionRegistration((1,), (1,), 1, epoch, epoch))
        kit.append("t", *values)
    assert await epoch_end(kit, 3, version) == (0, 3, 2)
    assert await epoch_end(kit, 4, version) == (0, 3, 2)
    assert await epoch_end(kit, 5, version) == (0, 5, 5)
    assert await epoch_end(kit, 8, version) == (0, 5, 5)
    assert await epoch_end(kit, 9, version) == (0, 9, 6)


async def test_rule_17_the_current_epoch_is_checked_before_the_end_is_told(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.partition("t").follow(PartitionRegistration((1,), (1,), 1, 5, 1))
    assert await epoch_end(kit, 5, current=4) == (74, -1, -1)
    assert await epoch_end(kit, 5, current=6) == (75, -1, -1)
    assert (await epoch_end(kit, 5, current=5))[0] == 0


async def test_rule_16_epochs_of_partitions_elsewhere(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.partition("t").follow(PartitionRegistration((2, 1), (2, 1), 2, 6, 2))
    assert await epoch_end(kit, 0) == (6, -1, -1)
    assert await epoch_end(kit, 0, topic="no-such-topic") == (3, -1, -1)


async def test_epochs_need_permission_on_the_topic_or_that_of_a_replica(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    assert await epoch_end(kit, 0) == (29, -1, -1)
    kit.authorizer = DenyAll((ResourceType.CLUSTER, Operation.CLUSTER_ACTION))
    assert (await epoch_end(kit, 0))[0] == 0


async def producers(kit: HandlerKit, topic: str = "t", index: int = 0) -> Any:
    answer = await kit.ask(ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": (index,)}])
    (row,) = answer.topics[0].partitions
    return row


async def test_active_producers_are_described(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", timestamp=5_000, producer_id=7, producer_epoch=2, base_sequence=0)
    row = await producers(kit)
    (producer,) = row.active_producers
    assert (row.error_code.value, row.error_message) == (0, None)
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 1)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (5_001, -1)


async def test_partitions_without_producers_or_without_a_log(kit: HandlerKit) -> None:
    await kit.create("t")
    assert (await producers(kit)).active_producers == ()
    assert (await producers(kit, index=4)).error_code.value == 3
    assert (await producers(kit, topic="a b")).error_code.value == 17
    kit.authorizer = DenyAll()
    assert (await producers(kit)).error_code.value == 29


async def init_producer_id(kit: HandlerKit, version: int = 5, **fields: Any) -> Any:
    fields.setdefault("transactional_id", None)
    answer = await kit.ask(ApiKey.INIT_PRODUCER_ID, version, transaction_timeout=60_000, **fields)
    return answer.error_code.value, answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("version", range(6))
async def test_every_idempotent_producer_gets_an_id_of_its_own(kit: HandlerKit, version: int) -> None:
    answers = await asyncio.gather(*(init_producer_id(kit, version) for _ in range(50)))
    assert {(error, epoch) for error, _, epoch in answers} == {(0, 0)}
    assert len({producer_id for _, producer_id, _ in answers}) == 50


async def test_ids_go_on_when_a_block_is_used_up(kit: HandlerKit) -> None:
    answers = [await init_producer_id(kit) for _ in range(1001)]
    assert len({producer_id for _, producer_id, _ in answers}) == 1001


async def test_rule_13_without_a_transactional_id_an_old_id_is_replaced_by_a_new_one(kit: HandlerKit) -> None:
    _, first, _ = await init_producer_id(kit)
    error, second, epoch = await init_producer_id(kit, 3, producer_id=first, producer_epoch=4)
    assert (error, epoch) == (0, 0)
    assert second != first


@pytest.mark.parametrize("fields", [{"producer_id": 3}, {"producer_epoch": 3}])
async def test_rule_13_an_id_comes_with_its_epoch(kit: HandlerKit, fields: dict[str, int]) -> None:
    assert await init_producer_id(kit, **fields) == (42, -1, -1)


async def test_an_id_needs_permission_to_write_somewhere(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    assert await init_producer_id(kit) == (31, -1, -1)
    kit.authorizer = DenyAll((ResourceType.TOPIC, Operation.WRITE))
    assert (await init_producer_id(kit))[0] == 0
    kit.authorizer = DenyAll((ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE))
    assert (await init_producer_id(kit))[0] == 0


async def replicated(kit: HandlerKit) -> Partition:
    await kit.create("t")
    partition = kit.partition("t")
    kit.append("t", "a", "b", "c")
    me = kit.node_id
    partition.follow(PartitionRegistration((me, 8, 9), (me, 8, 9), me, partition.leader_epoch + 1, 99))
    for follower in (8, 9):
        partition.update_follower_fetch_state(follower, 1, 3, -1, 0, 0)
    return partition


async def begun(task: "asyncio.Task[Any]") -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()


async def test_deletion_is_acknowledged_once_in_sync_replicas_know(kit: HandlerKit) -> None:
    partition = await replicated(kit)
    task = asyncio.create_task(delete_records(kit, 2, timeout=timedelta(seconds=60)))
    await begun(task)
    assert partition.log_start_offset == 2
    partition.update_follower_fetch_state(8, 1, 3, -1, 0, 2)
    await begun(task)
    partition.update_follower_fetch_state(9, 1, 3, -1, 0, 2)
    assert await task == (0, 2)


async def test_deletion_does_not_wait_for_replica_out_of_sync(kit: HandlerKit) -> None:
    partition = await replicated(kit)
    task = asyncio.create_task(delete_records(kit, 2, timeout=timedelta(seconds=60)))
    partition.update_follower_fetch_state(8, 1, 3, -1, 0, 2)
    await begun(task)
    me = kit.node_id
    partition.update_follower_fetch_state(8, 1, 3, -1, 0, 2)
    partition.follow(PartitionRegistration((me, 8, 9), (me, 8), me, partition.leader_epoch, 100))
    assert await task == (0, 2)
    leadership = partition.leadership
    assert leadership is not None
    assert leadership.proposal(3, 3, 1, 0, 1000, lambda *_: True) is None, "it would bring the records back"
    partition.update_follower_fetch_state(9, 1, 3, -1, 0, 2)
    assert leadership.proposal(3, 3, 1, 0, 1000, lambda *_: True) is not None


async def test_deletion_of_replaced_leader_is_not_acknowledged(kit: HandlerKit) -> None:
    partition = await replicated(kit)
    task = asyncio.create_task(delete_records(kit, 2, timeout=timedelta(seconds=60)))
    await begun(task)
    me = kit.node_id
    partition.follow(PartitionRegistration((me, 8, 9), (me, 8, 9), 8, partition.leader_epoch + 1, 100))
    assert await task == (6, -1)


async def test_deletion_that_followers_do_not_learn_times_out(kit: HandlerKit) -> None:
    await replicated(kit)
    fields = {"partition_index": 0, "offset": 2}
    topic = {"name": "t", "partitions": [fields]}
    answer = await kit.ask(ApiKey.DELETE_RECORDS, topics=[topic], timeout=timedelta(milliseconds=1))
    row = answer.topics[0].partitions[0]
    assert (row.error_code, row.low_watermark) == (7, -1)


async def test_deletion_to_lagging_high_watermark_is_rejected(kit: HandlerKit) -> None:
    partition = await replicated(kit)
    partition.high_watermark = 1
    assert await delete_records(kit, -1) == (7, -1)
