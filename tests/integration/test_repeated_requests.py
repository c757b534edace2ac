"""A producer that repeats itself is served by a shortcut, and must never notice."""

from typing import Any
from uuid import UUID

import pytest

from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.testing.simulation.files import SimFiles
from tests.integration.rules.kit import Client, SlowDisk, batch, running

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("version", [7, 8, 9, 12, 13])
@pytest.mark.parametrize("acks", [-1, 1])
async def test_each_request_is_answered_with_its_own_offset(version: int, acks: int) -> None:
    async with running() as broker, Client.of(broker) as client:
        topic_id = await client.create("orders", 2)
        for number in range(3):
            for index in (0, 1):
                row = await client.produce(
                    "orders", batch(f"{number}"), index=index, acks=acks, version=version, topic_id=topic_id
                )
                assert (row.error_code, row.index, row.base_offset) == (0, index, number)


async def test_a_request_that_waits_for_the_disk_is_answered_in_its_turn() -> None:
    disk = SlowDisk()
    async with running(disk) as broker, Client.of(broker) as client:
        await client.create("orders")
        await client.produce("orders", batch("first"))
        disk.may_sync.clear()
        for number in range(3):
            client.send_produce("orders", batch(f"{number}"))
        assert await client.has_nothing()
        disk.may_sync.set()
        offsets = [(await client.receive()).responses[0].partition_responses[0].base_offset for _ in range(3)]
        assert offsets == [1, 2, 3]


async def _offsets_and_codes(client: Client, count: int) -> list[tuple[int, int]]:
    rows = [(await client.receive()).responses[0].partition_responses[0] for _ in range(count)]
    return [(row.error_code, row.base_offset) for row in rows]


@pytest.mark.parametrize("version", [7, 9, 13])
@pytest.mark.parametrize("acks", [-1, 1])
async def test_requests_that_come_together_are_written_together(version: int, acks: int) -> None:
    """Also on a disk, where all of them wait for one sync; over a change of the partition, and more than one turn."""
    for disk in (None, SimFiles()):
        async with running(disk) as broker, Client.of(broker) as client:
            topic_id = await client.create("orders", 2)
            for index in (0, 1):
                await client.produce(
                    "orders", batch("first"), index=index, acks=acks, version=version, topic_id=topic_id
                )
            for number in range(50):
                client.send_produce(
                    "orders", batch(f"{number}"), index=number // 40, acks=acks, version=version, topic_id=topic_id
                )
            told = await _offsets_and_codes(client, 50)
            assert told == [(0, 1 + number % 40) for number in range(50)]
            counts = broker.figures.requests[ApiKey.PRODUCE].counts
            assert sum(counts) == 52, "each of them is a request that was answered"
            assert broker.figures.records.batches_in == 52


async def test_one_that_is_bad_spoils_none_of_its_neighbours() -> None:
    async with running() as broker, Client.of(broker) as client:
        await client.create("orders")
        await client.produce("orders", batch("first"))
        damaged = bytearray(batch("bad"))
        damaged[-1] ^= 1
        for records in (batch("1"), batch("2"), bytes(damaged), batch("3")):
            client.send_produce("orders", records)
        told = await _offsets_and_codes(client, 4)
        assert told == [(0, 1), (0, 2), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 3)]


async def test_who_waits_together_is_told_together_that_it_was_in_vain() -> None:
    """Each with an answer of its own, when the topic goes and when the client's patience is over."""
    disk = SlowDisk()
    async with running(disk) as broker, Client.of(broker) as client, Client.of(broker) as another:
        await client.create("orders")
        await client.produce("orders", batch("first"))
        disk.may_sync.clear()
        for number in range(3):
            client.send_produce("orders", batch(f"{number}"), timeout_ms=10)
        assert await _offsets_and_codes(client, 3) == [(ErrorCode.REQUEST_TIMED_OUT, -1)] * 3
        for number in range(3):
            client.send_produce("orders", batch(f"{number}"))
        assert await client.has_nothing()
        await another.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "orders", "topic_id": None}], timeout=10_000)
        assert await _offsets_and_codes(client, 3) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)] * 3
        disk.may_sync.set()


@pytest.mark.parametrize("together", [False, True])
async def test_nobody_writes_to_the_brokers_own_topics_by_asking_again(together: bool) -> None:
    async with running() as broker, Client.of(broker) as client:
        await client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        refused = (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        for _ in range(3):
            client.send_produce("__consumer_offsets", batch("forged"))
            if not together:
                assert await _offsets_and_codes(client, 1) == [refused]
        if together:
            assert await _offsets_and_codes(client, 3) == [refused] * 3


async def test_what_is_wrong_with_a_repeated_request_is_said_as_always() -> None:
    async with running() as broker, Client.of(broker) as client:
        await client.create("orders")
        for _ in range(2):
            assert (await client.produce("orders", batch("good"))).error_code == 0
        damaged = bytearray(batch("bad"))
        damaged[-1] ^= 1
        assert (await client.produce("orders", bytes(damaged))).error_code == ErrorCode.CORRUPT_MESSAGE
        assert (
            await client.produce("orders", batch("good"), index=1)
        ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        row = await client.produce("orders", batch("good"))
        assert (row.error_code, row.base_offset) == (0, 2)


async def test_a_change_of_the_topic_counts_from_the_next_request_on() -> None:
    async with running() as broker, Client.of(broker) as client:
        await client.create("orders")
        for _ in range(2):
            assert (await client.produce("orders", batch("x" * 500))).error_code == 0
        change = {"config_operation": 0, "name": "max.message.bytes", "value": "200"}
        resource = {"resource_type": 2, "resource_name": "orders", "configs": [change]}
        await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
        assert (await client.produce("orders", batch("x" * 500))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await client.produce("orders", batch("x"))).base_offset == 2
        await client.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "orders", "topic_id": None}], timeout=10_000)
        assert (await client.produce("orders", batch("x"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _commit(client: Client, version: int, offset: int, *, group: str = "g", topic: str = "orders") -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    fields = {"group_id": group, "topics": [{"name": topic, "partitions": [partition]}]}
    answer = await client.ask(ApiKey.OFFSET_COMMIT, version, **fields)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def _committed(client: Client) -> int:
    group = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}], "member_id": None}
    answer = await client.ask(ApiKey.OFFSET_FETCH, 9, groups=[group], require_stable=False)
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


@pytest.mark.parametrize("version", [2, 5, 7, 8, 9])
async def test_commits_of_the_same_partition_each_count(version: int) -> None:
    async with running() as broker, Client.of(broker) as client:
        await client.create("orders")
        await client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        for offset in (5, 6, 4, 2**40):
            assert await _commit(client, version, offset) == 0
            assert await _committed(client) == offset


async def _join(client: Client, member_id: str) -> Any:
    return await client.ask(
        ApiKey.JOIN_GROUP,
        5,
        group_id="g",
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )


async def test_a_repeated_commit_is_refused_as_always() -> None:
    async with running(configs={"group.initial.rebalance.delay.ms": "0"}) as broker, Client.of(broker) as client:
        await client.create("orders")
        await client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        for offset in range(3):
            assert await _commit(client, 9, offset) == 0
        member_id = (await _join(client, "")).member_id
        assert (await _join(client, member_id)).error_code == 0
        assert await _commit(client, 9, 7) == ErrorCode.UNKNOWN_MEMBER_ID, "it comes from none of the members"
        await client.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "orders", "topic_id": None}], timeout=10_000)
        assert await _commit(client, 9, 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_commit_for_a_deleted_topic_id_is_rejected() -> None:
    """A topic of the same name is another topic: its committed offsets are not set through the deleted id."""
    async with running() as broker, Client.of(broker) as client, Client.of(broker) as admin:
        await client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        deleted = await client.create("orders")
        assert [await _commit_by_id(client, deleted, offset) for offset in (1, 2, 3)] == [0, 0, 0]
        await admin.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders", "topic_id": None}], timeout=1000)
        successor = await admin.create("orders")
        assert await _commit_by_id(client, deleted, 70) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await _committed(client) == -1
        assert await _commit_by_id(client, successor, 1) == 0
        assert await _committed(client) == 1


async def test_repeated_commit_by_name_counts_for_the_recreated_topic() -> None:
    async with running() as broker, Client.of(broker) as client, Client.of(broker) as admin:
        await client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        await client.create("orders")
        assert [await _commit(client, 9, offset) for offset in (1, 2, 3)] == [0, 0, 0]
        await admin.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders", "topic_id": None}], timeout=1000)
        await admin.create("orders")
        assert await _committed(client) == -1
        for offset in (4, 5, 6):
            assert await _commit(client, 9, offset) == 0
            assert await _committed(client) == offset


@pytest.mark.parametrize("acks", [-1, 1])
async def test_produce_to_a_deleted_topic_id_is_rejected(acks: int) -> None:
    async with running() as broker, Client.of(broker) as client, Client.of(broker) as admin:
        deleted = await client.create("orders")
        for _ in range(3):
            await client.produce("orders", batch("old"), acks=acks, version=13, topic_id=deleted)
        await admin.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders", "topic_id": None}], timeout=1000)
        await admin.create("orders")
        row = await client.produce("orders", batch("late"), acks=acks, version=13, topic_id=deleted)
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert broker.partitions.get("orders", 0).log_end_offset == 0


async def _commit_by_id(client: Client, topic_id: UUID, offset: int) -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    fields = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": [partition]}]}
    answer = await client.ask(ApiKey.OFFSET_COMMIT, 10, **fields)
    code: int = answer.topics[0].partitions[0].error_code
    return code
