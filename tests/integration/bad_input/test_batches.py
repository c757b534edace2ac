"""Batches that break the rules: refused with Kafka's code, on a connection that lives on, and no trace in the log."""

from struct import pack_into, unpack_from
from uuid import uuid4

import pytest

from headrace.records.batch import HEADER_BYTES
from headrace.records.compression import Codec
from headrace.records.crc import crc32c
from tests.integration.bad_input.kit import (
    CORRUPT_MESSAGE,
    FRAME_BYTES_MAX,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    MESSAGE_TOO_LARGE,
    MIB,
    NONE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    batch,
    closes,
    resident_bytes,
)
from tests.integration.raw import PRODUCE, RawConnection, produce_body, request


def with_fresh_crc(data: bytearray) -> bytes:
    pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def patched(position: int, form: str, value: int) -> bytes:
    data = bytearray(batch(b"one", b"two"))
    pack_into(form, data, position, value)
    return with_fresh_crc(data)


def flipped(position: int) -> bytes:
    data = bytearray(batch(b"one", b"two"))
    data[position] ^= 1
    return bytes(data)


REFUSED = {
    "a wrong checksum": (flipped(17), CORRUPT_MESSAGE),
    "a flipped bit in the records": (flipped(HEADER_BYTES + 3), CORRUPT_MESSAGE),
    "magic 0": (patched(16, ">b", 0), UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 1": (patched(16, ">b", 1), UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 3": (patched(16, ">b", 3), CORRUPT_MESSAGE),
    "a control batch": (batch(b"end of transaction", control=True), INVALID_RECORD),
    "more records than offsets": (patched(57, ">i", 3), INVALID_RECORD),
    "no records": (patched(57, ">i", 0), INVALID_RECORD),
    "a negative count": (patched(57, ">i", -1), INVALID_RECORD),
    "two batches": (batch(b"one") + batch(b"two"), INVALID_RECORD),
    "a length beyond the request": (patched(8, ">i", 10_000), CORRUPT_MESSAGE),
    "a negative length": (patched(8, ">i", -1), CORRUPT_MESSAGE),
    "half a batch": (batch(b"one", b"two")[:-10], CORRUPT_MESSAGE),
    "half a header": (batch(b"one")[:30], CORRUPT_MESSAGE),
    "ten bytes": (bytes(10), CORRUPT_MESSAGE),
    "more than max.message.bytes": (batch(bytes(1_100_000)), MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_batch_that_breaks_the_rules_is_refused_and_leaves_no_trace(broker, topic, what):
    data, code = REFUSED[what]
    with RawConnection(broker.port) as connection:
        assert connection.produce_error(topic, data) == (code, -1)
        assert connection.fetched(topic) == b""
        assert connection.produce_error(topic, batch(b"good")) == (NONE, 0), "on the same connection"


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_do_not_exist_are_refused(broker, topic, acks):
    with RawConnection(broker.port) as connection:
        connection.send(request(PRODUCE, 3, produce_body(topic, batch(b"x"), acks=acks)))
        (code,) = unpack_from(">h", connection.receive(), 4 + 4 + 2 + len(topic) + 4 + 4)
        assert code == INVALID_REQUIRED_ACKS


def test_acks_0_and_a_bad_batch_close_the_connection(broker, topic):
    assert closes(broker, request(PRODUCE, 3, produce_body(topic, flipped(17), acks=0)))


# Snappy shrinks nothing to less than a twentieth: no bomb of it fits into a frame.
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_a_decompression_bomb_is_refused_in_bounded_memory(broker, codec):
    # Only a topic that wants another codec makes the broker look inside a batch.
    wanted = "zstd" if codec is not Codec.ZSTD else "gzip"
    name = f"bomb-{uuid4().hex}"
    before = resident_bytes(broker)
    with RawConnection(broker.port) as connection:
        assert connection.create_topic(name, {"compression.type": wanted, "max.message.bytes": "20000000"}) == NONE
        bomb = batch(bytes(400 * MIB), codec=codec)
        assert len(bomb) < FRAME_BYTES_MAX
        code, _ = connection.produce_error(name, bomb)
        assert code in (MESSAGE_TOO_LARGE, CORRUPT_MESSAGE)
        assert connection.fetched(name) == b""
    assert resident_bytes(broker) - before < 128 * MIB


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_records_that_do_not_decompress_are_refused_where_the_broker_must_look(broker, codec):
    name = f"broken-{uuid4().hex}"
    data = bytearray(batch(b"x" * 1000, codec=codec))
    data[HEADER_BYTES:] = bytes(len(data) - HEADER_BYTES)
    wanted = "zstd" if codec is not Codec.ZSTD else "gzip"
    with RawConnection(broker.port) as connection:
        assert connection.create_topic(name, {"compression.type": wanted}) == NONE
        code, _ = connection.produce_error(name, with_fresh_crc(data))
        assert code in (CORRUPT_MESSAGE, INVALID_RECORD)
