"""The rules that other brokers broke, each by its number, over a real socket: what is read, and offsets by time."""

import time
from typing import Any

import pytest

from headrace.broker.server import Broker
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.records.batch import batch_crc, parse_header
from headrace.records.compression import Codec
from tests.integration.rules.kit import NOW_MS, Client, all_records, batch, running, values

# ── 6: what a fetch returns ──


async def test_rule_06_a_fetch_inside_a_batch_returns_the_whole_batch(client: Client) -> None:
    await client.create("t")
    await client.produce("t", batch("a", "b", "c"))
    await client.produce("t", batch("d"))
    for offset in range(3):
        row = await client.fetch("t", offset)
        assert values(row.records) == ["a", "b", "c", "d"]
        assert parse_header(row.records).base_offset == 0


@pytest.mark.parametrize("version", [4, 11, 12, 17])
async def test_rule_06_the_first_batch_is_returned_even_if_it_is_larger_than_asked(
    client: Client, version: int
) -> None:
    topic_id = await client.create("t")
    for letter in "ab":
        await client.produce("t", batch(letter * 1_000))
    row = await client.fetch("t", version=version, topic_id=topic_id, max_bytes=1, partition_max_bytes=1)
    assert values(row.records) == ["a" * 1_000]


async def test_rule_06_only_the_first_partition_with_data_may_exceed_the_limit(client: Client) -> None:
    await client.create("t", 3)
    for index in (1, 2):
        await client.produce("t", batch("x" * 1_000), index=index)
    partitions = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1, "current_leader_epoch": -1}
        for index in range(3)
    ]
    answer = await client.ask(
        ApiKey.FETCH, 11, max_wait=0, min_bytes=1, max_bytes=1, topics=[{"topic": "t", "partitions": partitions}]
    )
    sizes = {row.partition_index: len(row.records or b"") for row in answer.responses[0].partitions}
    assert (sizes[0], sizes[1] > 1_000, sizes[2]) == (0, True, 0)


async def test_rule_06_a_batch_is_never_cut_by_the_limit(client: Client) -> None:
    await client.create("t")
    size = len(batch("x" * 100))
    for _ in range(20):
        await client.produce("t", batch("x" * 100))
    row = await client.fetch("t", partition_max_bytes=5 * size + size // 2)
    assert len(row.records) == 5 * size


async def test_rule_06_max_wait_is_honoured_without_looking_all_the_time(broker: Broker, client: Client) -> None:
    await client.create("t")
    handler = broker.dispatcher._hot[ApiKey.FETCH]
    looks = 0
    gather = handler.gather  # type: ignore[attr-defined]

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return gather(*arguments)

    handler.gather = counted  # type: ignore[attr-defined]
    before = time.monotonic()
    row = await client.fetch("t", max_wait=300)
    assert time.monotonic() - before > 0.29
    assert (row.error_code, row.records or b"") == (0, b"")
    assert looks == 2, "once when it came, once when its time was over"


async def test_rule_06_a_parked_fetch_is_answered_as_soon_as_there_is_enough(broker: Broker, client: Client) -> None:
    await client.create("t")
    size = len(batch("x" * 100))
    client.send_fetch("t", max_wait=20_000, min_bytes=2 * size)
    async with Client.of(broker) as other:
        await other.produce("t", batch("x" * 100))
        assert await client.has_nothing()
        await other.produce("t", batch("x" * 100))
    assert len((await client.receive()).responses[0].partitions[0].records) == 2 * size


async def test_rule_06_a_parked_fetch_hears_of_the_end_of_its_topic(broker: Broker, client: Client) -> None:
    await client.create("t")
    client.send_fetch("t", max_wait=20_000)
    async with Client.of(broker) as other:
        await other.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["t"], timeout=1_000)
    row = (await client.receive()).responses[0].partitions[0]
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-1, 2, 100])
async def test_rule_06_an_offset_that_is_not_there_is_out_of_range_at_once(client: Client, offset: int) -> None:
    await client.create("t")
    await client.produce("t", batch("a"))
    row = await client.fetch("t", offset, max_wait=20_000)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# ── 7: fetch sessions ──


def wanted(*indexes: int, offset: int = 0) -> list[dict[str, Any]]:
    rows = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        for index in indexes
    ]
    return [{"topic": "t", "partitions": rows}] if indexes else []


async def session_fetch(client: Client, session_id: int, epoch: int, topics: Any = (), **fields: Any) -> Any:
    return await client.ask(
        ApiKey.FETCH,
        12,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
        **fields,
    )


async def test_rule_07_a_session_tells_only_what_is_new(broker: Broker, client: Client) -> None:
    await client.create("t", 3)
    first = await session_fetch(client, 0, 0, wanted(0, 1, 2))
    assert first.session_id > 0
    assert len(first.responses[0].partitions) == 3, "the first answer names all"
    quiet = await session_fetch(client, first.session_id, 1)
    assert (quiet.error_code, quiet.session_id, quiet.responses) == (0, first.session_id, ())
    async with Client.of(broker) as other:
        await other.produce("t", batch("news"), index=1)
    news = await session_fetch(client, first.session_id, 2)
    assert [(row.partition_index, values(row.records)) for row in news.responses[0].partitions] == [(1, ["news"])]
    moved = await session_fetch(client, first.session_id, 3, wanted(1, offset=1))
    assert moved.responses == ()
    forgotten = await session_fetch(
        client, first.session_id, 4, forgotten_topics_data=[{"topic": "t", "partitions": [1]}]
    )
    assert forgotten.responses == ()
    async with Client.of(broker) as other:
        await other.produce("t", batch("unheard"), index=1)
    assert (await session_fetch(client, first.session_id, 5)).responses == ()


async def test_rule_07_errors_are_told_every_time(client: Client) -> None:
    await client.create("t", 1)
    first = await session_fetch(client, 0, 0, wanted(0, 5))
    for epoch in (1, 2):
        again = await session_fetch(client, first.session_id, epoch)
        assert [(row.partition_index, row.error_code) for row in again.responses[0].partitions] == [
            (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        ]


async def test_rule_07_unknown_sessions_and_wrong_epochs_have_their_codes(client: Client) -> None:
    await client.create("t")
    first = await session_fetch(client, 0, 0, wanted(0))
    assert (await session_fetch(client, first.session_id, 7)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (await session_fetch(client, 12345, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    closed = await session_fetch(client, first.session_id, -1, wanted(0))
    assert (closed.error_code, closed.session_id) == (0, 0)
    assert (await session_fetch(client, first.session_id, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_rule_07_without_a_slot_the_session_id_is_0_and_everything_is_told() -> None:
    slots = {"max.incremental.fetch.session.cache.slots": "1"}
    async with running(configs=slots) as broker, Client.of(broker) as client:
        await client.create("t", 2)
        first = await session_fetch(client, 0, 0, wanted(0, 1))
        second = await session_fetch(client, 0, 0, wanted(0, 1))
        assert (first.session_id > 0, second.session_id) == (True, 0)
        assert len(second.responses[0].partitions) == 2


# ── 8: isolation ──


@pytest.mark.parametrize(("isolation_level", "aborted"), [(0, None), (1, ())])
async def test_rule_08_aborted_transactions_are_for_read_committed_only(
    client: Client, isolation_level: int, aborted: Any
) -> None:
    await client.create("t")
    await client.produce("t", batch("a"))
    row = await client.fetch("t", isolation_level=isolation_level)
    assert (row.aborted_transactions, row.last_stable_offset, row.high_watermark) == (aborted, 1, 1)


# ── 28: times ──


async def list_offset(client: Client, timestamp: int, version: int) -> tuple[int, int]:
    partition: dict[str, Any] = {"partition_index": 0, "timestamp": timestamp}
    answer = await client.ask(
        ApiKey.LIST_OFFSETS, version, replica_id=-1, topics=[{"name": "t", "partitions": [partition]}]
    )
    row = answer.topics[0].partitions[0]
    assert row.error_code == 0, row
    told = row.timestamp
    return row.offset, -1 if told is None else int(told.timestamp() * 1_000) if hasattr(told, "timestamp") else told


@pytest.mark.parametrize("version", range(1, 11))
async def test_rule_28_offsets_are_found_by_time(client: Client, version: int) -> None:
    await client.create("t", internal_segment_bytes="400")
    for offset, codec in enumerate(Codec):
        await client.produce("t", batch("a", "b", timestamp=NOW_MS + 100 * offset, codec=codec))
    assert await list_offset(client, -2, version) == (0, -1)
    assert await list_offset(client, -1, version) == (10, -1)
    assert await list_offset(client, NOW_MS - 1, version) == (0, NOW_MS)
    assert await list_offset(client, NOW_MS + 1, version) == (1, NOW_MS + 1)
    assert await list_offset(client, NOW_MS + 2, version) == (2, NOW_MS + 100)
    assert await list_offset(client, NOW_MS + 301, version) == (7, NOW_MS + 301)
    assert await list_offset(client, NOW_MS + 402, version) == (-1, -1)
    if version >= 7:
        assert await list_offset(client, -3, version) == (9, NOW_MS + 401)
    if version >= 8:
        assert (await list_offset(client, -4, version))[0] == 0


async def test_rule_28_the_highest_timestamp_is_the_first_of_equals_and_not_the_last_written(client: Client) -> None:
    await client.create("t")
    for timestamp in (NOW_MS + 50, NOW_MS + 90, NOW_MS + 10, NOW_MS + 90):
        await client.produce("t", batch("x", timestamp=timestamp))
    assert await list_offset(client, -3, 7) == (1, NOW_MS + 90)


async def test_rule_28_log_append_time_is_the_brokers(client: Client) -> None:
    await client.create("t", message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    row = await client.produce("t", batch("a", "b", timestamp=5), version=8)
    after = time.time_ns() // 1_000_000
    told = row.log_append_time
    told_ms = int(told.timestamp() * 1_000) if hasattr(told, "timestamp") else told
    assert before <= told_ms <= after
    got = (await client.fetch("t")).records
    assert batch_crc(got) == parse_header(got).crc
    assert {record.timestamp for record in all_records(got)} == {told_ms}
    assert await list_offset(client, told_ms, 7) == (0, told_ms)
