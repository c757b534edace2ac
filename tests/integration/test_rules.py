"""The rules that other brokers broke, each by its number, over a real socket."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.partition import Partition
from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.kafka_messages import message_class
from headrace.records.batch import batch_crc, parse_header, walk
from headrace.records.builder import NewRecord, build_batch, sealed
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, encode_marker
from headrace.records.record import decode_records
from tests.integration.rules_kit import NOW_MS, Client, SlowDisk, batch, running
from tests.unit.protocol.kio_messages import kio_read

BY_VERSION = [(api, version) for api, served in SERVED.items() for version in range(served.lowest, served.highest + 1)]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running() as started:
        yield started


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client.of(broker) as connected:
        yield connected


def values(records: bytes | None) -> list[str]:
    return [record.value.decode() for record in all_records(records)]


def all_records(records: bytes | None) -> list[Any]:
    data = memoryview(records or b"")
    return [
        record for at, header in walk(data) for record in decode_records(data[at : at + header.total_bytes], header)
    ]


# ── 1, 2, 3: what is advertised ──


@pytest.mark.parametrize("version", [5, 99, 32767])
async def test_rule_01_a_newer_api_versions_is_answered_in_version_0_with_error_35_and_the_list(
    client: Client, version: int
) -> None:
    client.send_bytes(ApiKey.API_VERSIONS, version, b"\x05abcd\x05abcd\x00", is_answered=False)
    frame = await client.receive_bytes()
    answer = kio_read(message_class(ApiKey.API_VERSIONS, 0, "response"), frame[4:])
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {row.api_key for row in answer.api_keys} == set(SERVED)
    again = await client.ask(ApiKey.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    assert again.error_code == 0, "and the connection goes on"


async def test_rule_02_produce_is_advertised_from_version_0_and_refused_below_3(broker: Broker, client: Client) -> None:
    answer = await client.ask(ApiKey.API_VERSIONS, 0)
    produce = next(row for row in answer.api_keys if row.api_key == ApiKey.PRODUCE)
    assert (produce.min_version, produce.max_version) == (0, SERVED[ApiKey.PRODUCE].highest)
    for version in range(3):
        async with Client.of(broker) as other:
            other.send_bytes(ApiKey.PRODUCE, version, bytes(20), is_answered=False)
            assert await other.is_closed()


@pytest.mark.parametrize(("api", "version"), BY_VERSION, ids=[f"{api.name}-{version}" for api, version in BY_VERSION])
async def test_rule_03_every_advertised_version_is_answered_in_its_own_format(
    client: Client, api: ApiKey, version: int
) -> None:
    """With the schema's defaults: mostly an empty request. What comes back is read by kio to the last byte."""
    fields: dict[str, Any] = {"acks": -1} if api is ApiKey.PRODUCE else {}
    if api is ApiKey.API_VERSIONS and version >= 3:
        fields = {"client_software_name": "test", "client_software_version": "1"}
    await client.ask(api, version, **fields)
    assert (await client.ask(ApiKey.API_VERSIONS, 0)).error_code == 0


# ── 4: acks=0, order ──


async def test_rule_04_acks_0_has_no_answer_and_is_written(client: Client) -> None:
    await client.create("t")
    for number in range(10):
        client.send_produce("t", batch(f"value {number}"), acks=0)
    await client.ask(ApiKey.API_VERSIONS, 0)
    assert values((await client.fetch("t")).records) == [f"value {number}" for number in range(10)]


BROKEN = batch("x")[:-1] + b"?"


@pytest.mark.parametrize(("topic", "records"), [("nobody", batch("x")), ("t", BROKEN), ("t", None)])
async def test_rule_04_acks_0_that_fails_closes_the_connection(
    broker: Broker, client: Client, topic: str, records: bytes | None
) -> None:
    await client.create("t")
    async with Client.of(broker) as other:
        other.send_produce(topic, records, acks=0)
        assert await other.is_closed()
    assert (await client.fetch("t")).high_watermark == 0


async def test_rule_04_answers_keep_their_order_behind_a_parked_fetch_and_a_slow_disk() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client, Client.of(broker) as other:
            await client.create("t", 2)
            disk.may_sync.clear()
            client.send_fetch("t", index=1, max_wait=10_000)
            client.send_produce("t", batch("waits for the disk"))
            client.send(ApiKey.METADATA, topics=None)
            client.send_produce("t", batch("acks=1 would be ready"), acks=1)
            client.send(ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0)
            assert await client.has_nothing()
            assert (await other.ask(ApiKey.API_VERSIONS, 0)).error_code == 0, "others are served meanwhile"
            disk.may_sync.set()
            assert await client.has_nothing(), "the fetch is still parked"
            await other.produce("t", batch("wakes the fetch"), index=1)
            assert values((await client.receive()).responses[0].partitions[0].records) == ["wakes the fetch"]
            assert (await client.receive()).responses[0].partition_responses[0].base_offset == 0
            assert [topic.name for topic in (await client.receive()).topics] == ["t"]
            assert (await client.receive()).responses[0].partition_responses[0].base_offset == 1
            await client.receive()


async def test_rule_04_a_thousand_pipelined_produces_are_all_answered_in_order() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client:
            await client.create("t")
            disk.may_sync.clear()
            for number in range(1_000):
                client.send_produce("t", batch(f"value {number}"))
            disk.may_sync.set()
            for number in range(1_000):
                row = (await client.receive()).responses[0].partition_responses[0]
                assert (row.error_code, row.base_offset) == (0, number)
            syncs = sum(1 for operation, path in disk.operations if operation == "sync" and path.endswith(".log"))
            assert syncs < 200, "one sync serves many"


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
    assert 0.29 < time.monotonic() - before < 5
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


# ── 11, 12: idempotence ──


def sequenced(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 77) -> bytes:
    names = [f"value {sequence + number}" for number in range(count)]
    return batch(*names, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


async def outcome(client: Client, records: bytes) -> tuple[int, int]:
    row = await client.produce("t", records)
    return row.error_code, row.base_offset


async def test_rule_11_the_last_five_batches_are_remembered_with_their_offsets(client: Client) -> None:
    await client.create("t")
    for number in range(6):
        assert await outcome(client, sequenced(2 * number, 2)) == (0, 2 * number)
    for number in range(1, 6):
        assert await outcome(client, sequenced(2 * number, 2)) == (0, 2 * number), "its original offset"
    assert (await outcome(client, sequenced(0, 2)))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await client.fetch("t")).high_watermark == 12, "nothing was written twice"


async def test_rule_11_epochs_and_gaps(client: Client) -> None:
    await client.create("t")
    assert await outcome(client, sequenced(1_000, epoch=3)) == (0, 0), "an unknown producer may start anywhere"
    assert (await outcome(client, sequenced(1_002, epoch=3)))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await outcome(client, sequenced(1_001, epoch=2)))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await outcome(client, sequenced(5, epoch=4)))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await outcome(client, sequenced(0, epoch=4)) == (0, 1), "a new epoch starts at 0"


async def test_rule_11_sequences_wrap(client: Client) -> None:
    await client.create("t")
    last = 2**31 - 1
    assert await outcome(client, sequenced(last - 1, 1)) == (0, 0)
    assert await outcome(client, sequenced(last, 3)) == (0, 1), "2^31-1, 0, 1"
    assert await outcome(client, sequenced(2, 1)) == (0, 4)
    assert await outcome(client, sequenced(last, 3)) == (0, 1)


async def test_rule_11_a_repetition_is_not_acknowledged_before_the_first_is_on_disk() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client, Client.of(broker) as other:
            await client.create("t")
            disk.may_sync.clear()
            client.send_produce("t", sequenced(0))
            other.send_produce("t", sequenced(0))
            assert await client.has_nothing()
            assert await other.has_nothing()
            disk.may_sync.set()
            for one in (client, other):
                row = (await one.receive()).responses[0].partition_responses[0]
                assert (row.error_code, row.base_offset) == (0, 0)


async def test_rule_12_producers_are_remembered_over_a_clean_stop_and_over_a_crash() -> None:
    from headrace.app.clock import SystemClock
    from headrace.metadata.memory import MemoryStore

    store = MemoryStore(SystemClock())
    with SlowDisk() as disk:
        async with running(disk, store) as broker, Client.of(broker) as client:
            await client.create("t")
            for number in range(4):
                assert await outcome(client, sequenced(number)) == (0, number)
        async with running(disk, store) as broker, Client.of(broker) as client:
            assert await outcome(client, sequenced(1)) == (0, 1)
            assert await outcome(client, sequenced(4)) == (0, 4)
            disk.lose_power()
            broker.partitions._held.clear()  # the old process is gone; what it would still do, it does to nothing
        async with running(disk, store) as broker, Client.of(broker) as client:
            assert [await outcome(client, sequenced(number)) for number in range(2, 6)] == [
                (0, number) for number in range(2, 6)
            ]


# ── 16, 17, 19, 20: whose partition, which epoch, which topic ──


async def elsewhere(client: Client, broker: Broker) -> None:
    """The second partition of `t` moves to another broker, as far as this one knows."""
    image = broker.image.topics["t"]
    other = image.partitions[1]._replace(replicas=(2,), isr=(2,), leader=2, leader_epoch=9)
    moved = image._replace(partitions=(image.partitions[0], other))
    broker.partitions._topics["t"] = moved
    for key in ("t", image.topic_id):
        broker.partitions._held.pop((key, 1))


async def test_rule_16_what_another_broker_leads_is_not_unknown(broker: Broker, client: Client) -> None:
    topic_id = await client.create("t", 2)
    await elsewhere(client, broker)
    row = await client.produce("t", batch("x"), index=1)
    assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (6, 2, 9)
    row = await client.fetch("t", index=1, version=17, topic_id=topic_id, max_wait=10_000)
    assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (6, 2, 9)
    assert (await client.produce("t", batch("x"), index=2)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.produce("nobody", batch("x"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("difference", "code"), [(-1, 74), (0, 0), (1, 75)])
async def test_rule_17_the_leader_epoch_of_a_fetch_is_checked(
    broker: Broker, client: Client, difference: int, code: int
) -> None:
    await client.create("t")
    partition = broker.partitions.get("t", 0)
    partition.leader_epoch = 5
    await client.produce("t", batch("a"))
    row = await client.fetch("t", leader_epoch=5 + difference)
    assert row.error_code == code
    if not code:
        assert parse_header(row.records).leader_epoch == 5, "and it stands in the batches"


async def test_rule_19_a_recreated_topic_is_another_topic(client: Client) -> None:
    old = await client.create("t")
    await client.produce("t", batch("old"))
    old_epoch = parse_header((await client.fetch("t")).records).leader_epoch
    await client.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}], timeout=1_000)
    new = await client.create("t")
    assert new != old
    assert (await client.produce("t", batch("x"), version=13, topic_id=old)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    row = await client.fetch("t", version=17, topic_id=old)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    row = await client.produce("t", batch("new"), version=13, topic_id=new)
    assert (row.error_code, row.base_offset) == (0, 0)
    row = await client.fetch("t", version=17, topic_id=new)
    assert values(row.records) == ["new"]
    assert parse_header(row.records).leader_epoch > old_epoch


async def test_rule_20_a_topic_that_metadata_creates_takes_writes_at_once(client: Client) -> None:
    for number in range(5):
        name = f"created-{number}"
        client.send(ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": None}], allow_auto_topic_creation=True)
        client.send_produce(name, batch("first"))
        topic = (await client.receive()).topics[0]
        assert (topic.error_code, topic.partitions[0].leader_id) == (0, 1)
        assert (await client.receive()).responses[0].partition_responses[0].error_code == 0


# ── 25: throttling ──


async def test_rule_25_nobody_is_throttled_and_every_answer_says_so(client: Client) -> None:
    """There are no quotas yet: the field is there, and it is 0."""
    await client.create("t")
    client.send_produce("t", batch("x"))
    client.send_fetch("t")
    client.send(ApiKey.METADATA, topics=None)
    client.send(ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0)
    for _ in range(4):
        answer = await client.receive()
        assert answer.throttle_time.total_seconds() == 0


# ── 26, 27: what a batch must be ──


def with_magic(magic: int) -> bytes:
    data = bytearray(batch("x"))
    data[16] = magic
    return bytes(data)


def with_header(**fields: int) -> bytes:
    good = batch("a", "b")
    return bytes(sealed(parse_header(good)._replace(**fields), good[61:]))


# Not transactional: a batch that is, in a request without a transactional id, is refused before anybody looks at it.
CONTROL = build_batch([NewRecord(NOW_MS, *encode_marker(EndMarker(ControlType.COMMIT, 0)))], control=True)
REFUSED = {
    "rule_26_magic_0": (with_magic(0), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "rule_26_magic_1": (with_magic(1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "rule_27_wrong_checksum": (BROKEN, ErrorCode.CORRUPT_MESSAGE),
    "rule_27_cut_short": (batch("x")[:-1], ErrorCode.CORRUPT_MESSAGE),
    "rule_27_two_batches": (batch("x") + batch("y"), ErrorCode.INVALID_RECORD),
    "rule_27_no_batch": (b"", ErrorCode.INVALID_RECORD),
    "rule_27_null": (None, ErrorCode.INVALID_RECORD),
    "rule_27_control_batch": (CONTROL, ErrorCode.INVALID_RECORD),
    "rule_27_last_offset_delta_too_large": (with_header(last_offset_delta=5), ErrorCode.INVALID_RECORD),
    "rule_27_last_offset_delta_negative": (with_header(last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    "rule_27_no_records": (with_header(record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    "rule_31_unknown_codec": (with_header(attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "rule_28_timestamp_type": (with_header(attributes=8), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize(("records", "code"), REFUSED.values(), ids=list(REFUSED))
@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
async def test_bad_batches_are_refused_and_their_neighbours_are_not(
    client: Client, version: int, records: bytes | None, code: ErrorCode
) -> None:
    await client.create("t", 3)
    rows = await client.produce("t", batch("before"), records, batch("after"), version=version)
    assert [row.error_code for row in rows] == [0, code, 0]
    assert rows[1].base_offset == -1
    if version >= 8:
        assert rows[1].error_message
    assert (await client.fetch("t", index=1)).high_watermark == 0


async def test_rule_27_the_size_limit_is_on_the_batch(client: Client) -> None:
    await client.create("t", max_message_bytes="500")
    assert (await client.produce("t", batch("x" * 500))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await client.produce("t", batch("x" * 400))).error_code == 0


async def test_rule_27_records_without_a_key_are_named_on_a_compacted_topic(client: Client) -> None:
    await client.create("t", cleanup_policy="compact")
    row = await client.produce("t", batch("a", "b", key=None), version=8)
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in row.record_errors] == [0, 1]
    assert (await client.produce("t", batch("a"))).error_code == 0


async def test_rule_27_an_append_changes_nothing_but_offset_and_leader_epoch(broker: Broker, client: Client) -> None:
    await client.create("t")
    broker.partitions.get("t", 0).leader_epoch = 3
    sent = batch("a", "b")
    for number in range(3):
        await client.produce("t", sent)
        got = (await client.fetch("t", 2 * number)).records
        header = parse_header(got)
        assert (header.base_offset, header.leader_epoch) == (2 * number, 3)
        assert got[:8] + sent[8:12] + got[12:16] + sent[16:] == got
        assert batch_crc(got) == header.crc


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


# ── 31: compression ──


@pytest.mark.parametrize("codec", list(Codec))
async def test_rule_31_the_clients_bytes_are_kept(client: Client, codec: Codec) -> None:
    await client.create("t")
    sent = batch("a" * 200, "b" * 200, codec=codec)
    assert (await client.produce("t", sent)).error_code == 0
    assert (await client.fetch("t")).records[16:] == sent[16:]


@pytest.mark.parametrize("wanted_codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
async def test_rule_31_the_topics_codec_is_used_where_it_differs(client: Client, wanted_codec: str) -> None:
    await client.create("t", compression_type=wanted_codec)
    for codec in Codec:
        assert (await client.produce("t", batch("a" * 200, "b" * 200, codec=codec))).error_code == 0
    got = (await client.fetch("t")).records
    expected = Codec.NONE if wanted_codec == "uncompressed" else Codec[wanted_codec.upper()]
    assert {header.codec for _, header in walk(got)} == {expected}
    assert values(got) == ["a" * 200, "b" * 200] * len(Codec)


async def test_rule_31_zstd_needs_a_client_that_knows_it(client: Client) -> None:
    await client.create("t")
    row = await client.produce("t", batch("x", codec=Codec.ZSTD), version=6)
    assert row.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await client.produce("t", batch("x", codec=Codec.ZSTD), version=7)).error_code == 0


# ── the disk, over the socket (D6) ──


async def test_d6_rule_11_a_failed_sync_is_answered_as_a_storage_error_and_never_acknowledged() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client:
            await client.create("t", 2)
            assert (await client.produce("t", batch("kept"))).error_code == 0
            disk.fail("sync", path="/data/t-0/*.log")
            row = await client.produce("t", batch("lost"))
            assert (row.error_code, row.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            row = await client.produce("t", batch("refused"))
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "it is offline from now on"
            assert (await client.fetch("t", max_wait=10_000)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await client.produce("t", batch("fine"), index=1)).error_code == 0, "its neighbour is not"


async def test_d6_a_topic_deleted_while_its_first_batch_is_on_its_way_to_disk_stops_nobody_else() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client, Client.of(broker) as other:
            await client.create("t")
            await client.create("u")
            disk.may_sync.clear()
            client.send_produce("t", batch("x"))
            assert await client.has_nothing()
            await other.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["t"], timeout=1_000)
            disk.may_sync.set()
            row = (await client.receive()).responses[0].partition_responses[0]
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await client.produce("u", batch("still acknowledged"))).error_code == 0


async def test_rule_11_a_produce_that_the_disk_keeps_waiting_times_out_and_the_connection_goes_on() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client:
            await client.create("t")
            disk.may_sync.clear()
            row = await client.produce("t", batch("x"), timeout_ms=100)
            assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
            disk.may_sync.set()
            assert (await client.produce("t", batch("y"))).base_offset == 1


async def test_rule_11_a_mistake_of_ours_ends_the_connection_and_is_no_unknown_server_error(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients give a batch up at UNKNOWN_SERVER_ERROR; after a lost connection they send it again, and it is known."""
    await client.create("t")
    written = Partition.append

    def append_and_fail(partition: Partition, *arguments: Any, **named: Any) -> None:
        written(partition, *arguments, **named)
        raise ValueError("a mistake of ours, behind the append")

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", append_and_fail)
        async with Client.of(broker) as other:
            other.send_produce("t", sequenced(0))
            assert await other.is_closed()
    assert "a mistake of ours" in caplog.text
    assert await outcome(client, sequenced(0)) == (0, 0), "it was written, and is not written twice"
    assert (await client.fetch("t")).high_watermark == 1
