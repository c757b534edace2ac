"""A producer that repeats itself is served by a shortcut, and must never notice."""

from typing import Any

import pytest

from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from tests.integration.rules_kit import Client, SlowDisk, batch, running

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
