"""Committed offsets while a topic is deleted and created again, with and without a coordinator that notices."""

from typing import Any

import pytest

from headrace.broker.replica.partition import Partition
from headrace.core.group.records import NO_TOPIC_ID, OffsetKey
from headrace.model.ids import TopicPartition
from headrace.protocol.api import SERVED, ApiKey
from headrace.records.batch import HEADER_BYTES, walk
from headrace.records.record import iter_record_spans
from tests.unit.broker.handlers.handler_kit import HandlerKit

TOPIC_IDS_FROM = 10  # of OffsetCommit and OffsetFetch
GROUPS_FROM = 8  # of OffsetFetch
TRANSACTION = "tx"


@pytest.fixture
async def kit() -> Any:
    started = await HandlerKit(
        offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1", num_partitions="1"
    ).start()
    await started.create("t")
    await started.create("u")
    await started.groups.leader_of("g")
    await started.transactions.leader_of(TRANSACTION)
    yield started
    await started.close()
    await started.partitions.close()
    await started.controller.stop()


async def commit(kit: HandlerKit, topic: str, offset: int, version: int = 9) -> None:
    named = {"topic_id": kit.image.topics[topic].topic_id} if version >= TOPIC_IDS_FROM else {"name": topic}
    partitions = [{"partition_index": 0, "committed_offset": offset}]
    answer = await kit.ask(ApiKey.OFFSET_COMMIT, version, group_id="g", topics=[{**named, "partitions": partitions}])
    assert answer.topics[0].partitions[0].error_code.value == 0


async def fetch(kit: HandlerKit, version: int, topic: str | None = "t") -> dict[Any, int]:
    """The offset of partition 0 of one topic or of all, by the name or the id that the response has."""
    by_id = version >= TOPIC_IDS_FROM
    topics = None
    if topic is not None:
        named = {"topic_id": kit.image.topics[topic].topic_id} if by_id else {"name": topic}
        topics = [{**named, "partition_indexes": (0,)}]
    if version >= GROUPS_FROM:
        answer = await kit.ask(ApiKey.OFFSET_FETCH, version, groups=[{"group_id": "g", "topics": topics}])
        rows = answer.groups[0].topics
    else:
        rows = (await kit.ask(ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics)).topics
    return {row.topic_id if by_id else row.name: row.partitions[0].committed_offset for row in rows}


async def transactional_commit(kit: HandlerKit, topic: str, offset: int) -> dict[str, Any]:
    answer = await kit.ask(
        ApiKey.INIT_PRODUCER_ID, 5, transactional_id=TRANSACTION, transaction_timeout=60_000, producer_id=-1
    )
    producer = {
        "transactional_id": TRANSACTION,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    committed = await kit.ask(ApiKey.TXN_OFFSET_COMMIT, 5, **producer, group_id="g", topics=rows)
    assert committed.topics[0].partitions[0].error_code.value == 0
    return producer


async def recreate(kit: HandlerKit, topic: str) -> None:
    await kit.controller.delete_topics([topic])
    await kit.create(topic)


def resign(kit: HandlerKit) -> Partition:
    """Another broker is the group's coordinator from now on."""
    partition = kit.groups.runtime.shard_for("g").partition
    kit.groups.runtime.resign(partition.index)
    return partition


async def lead(kit: HandlerKit, partition: Partition) -> None:
    kit.groups.runtime.lead(partition)
    for load in list(kit.groups.runtime._loads):
        await load


async def fail_over_while_recreated(kit: HandlerKit, topic: str) -> None:
    partition = resign(kit)
    await recreate(kit, topic)
    await lead(kit, partition)


def record_values(kit: HandlerKit) -> list[bytes | None]:
    piece = kit.groups.runtime.shard_for("g").partition.read_uncommitted(0, 1024 * 1024)
    assert piece is not None
    data = piece.read()
    values = []
    for position, header in walk(data):
        section = data[position + HEADER_BYTES : position + header.total_bytes]
        for _, _, _, start, end, _, _ in iter_record_spans(section, header):
            values.append(section[start:end] if start >= 0 else None)
    return values


@pytest.mark.parametrize(
    "version", range(SERVED[ApiKey.OFFSET_COMMIT].lowest, SERVED[ApiKey.OFFSET_COMMIT].highest + 1)
)
async def test_commit_writes_the_topic_id(kit: HandlerKit, version: int) -> None:
    await commit(kit, "t", 7, version)
    (value,) = record_values(kit)
    assert value is not None
    assert value[:2] == b"\x00\x04"
    assert value.endswith(kit.image.topics["t"].topic_id.bytes)


async def test_transactional_commit_writes_the_topic_id(kit: HandlerKit) -> None:
    await transactional_commit(kit, "t", 7)
    (value,) = record_values(kit)
    assert value is not None
    assert value.endswith(kit.image.topics["t"].topic_id.bytes)


@pytest.mark.parametrize("version", range(SERVED[ApiKey.OFFSET_FETCH].lowest, SERVED[ApiKey.OFFSET_FETCH].highest + 1))
async def test_offset_committed_before_failover_and_recreation_is_absent(kit: HandlerKit, version: int) -> None:
    await commit(kit, "t", 7)
    await commit(kit, "u", 5)
    await fail_over_while_recreated(kit, "t")
    assert set((await fetch(kit, version)).values()) == {-1}
    assert set((await fetch(kit, version, "u")).values()) == {5}
    if version >= 2:
        assert list((await fetch(kit, version, None)).values()) == [5]


async def test_new_coordinator_writes_tombstones_of_recreated_topic(kit: HandlerKit) -> None:
    await commit(kit, "t", 7)
    await commit(kit, "u", 5)
    await fail_over_while_recreated(kit, "t")
    values = record_values(kit)
    assert [value is None for value in values] == [False, False, True]
    assert set(kit.groups.runtime.shard_for("g").machine.offsets.of_group("g")) == {("u", 0)}


async def test_offset_is_absent_before_tombstones_are_written(kit: HandlerKit) -> None:
    """The partition may reject appends for a while."""
    await commit(kit, "t", 7)
    await commit(kit, "u", 5)
    machine = kit.groups.runtime.shard_for("g").machine
    key = OffsetKey("g", TopicPartition("t", 0))
    known = machine.offsets.of_group("g")[key.place]
    await recreate(kit, "t")
    machine.offsets.put(key, known)
    assert await fetch(kit, 9, "t") == {"t": -1}
    assert await fetch(kit, 9, None) == {"u": 5}


async def test_creation_removes_offsets_whose_deletion_was_missed(kit: HandlerKit) -> None:
    await commit(kit, "t", 7)
    partition = resign(kit)
    await kit.controller.delete_topics(["t"])
    await lead(kit, partition)
    await kit.create("t")
    assert await fetch(kit, 9) == {"t": -1}
    assert not kit.groups.runtime.shard_for("g").machine.offsets.holds("g")


async def test_pending_offset_of_recreated_topic_is_not_committed(kit: HandlerKit) -> None:
    producer = await transactional_commit(kit, "t", 7)
    await fail_over_while_recreated(kit, "t")
    assert await fetch(kit, 9) == {"t": -1}
    ended = await kit.ask(ApiKey.END_TXN, 5, **producer, committed=True)
    assert ended.error_code.value == 0
    await kit.transactions.runtime.completed(TRANSACTION, 5)
    assert await fetch(kit, 9) == {"t": -1}


async def test_new_topic_has_offsets_of_its_own(kit: HandlerKit) -> None:
    await commit(kit, "t", 7)
    await recreate(kit, "t")
    await commit(kit, "t", 1)
    assert await fetch(kit, 9) == {"t": 1}
    await lead(kit, resign(kit))
    assert await fetch(kit, 9) == {"t": 1}
    assert kit.groups.runtime.shard_for("g").machine.offsets.topics_with_ids()["t"] != {NO_TOPIC_ID}
