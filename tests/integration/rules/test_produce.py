"""The rules that other brokers broke, each by its number, over a real socket: what is written."""

from typing import Any

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.records.batch import batch_crc, parse_header, walk
from headrace.records.builder import NewRecord, build_batch, sealed
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, encode_marker
from tests.integration.rules.kit import BROKEN, NOW_MS, Client, SlowDisk, batch, running, values

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
    from headrace.metadata.embedded import MemoryStore
    from headrace.process.runtime import SystemClock

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
