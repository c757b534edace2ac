"""Bytes that no client would send: each has a stated answer, and the next client is served.

docs/compatibility.md has the table of answers.
"""

import random
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack, pack_into, unpack_from
from uuid import uuid4

import psutil
import pytest

from headrace.records.batch import HEADER_BYTES
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Codec
from headrace.records.crc import crc32c
from headrace.testing import LocalBroker
from tests.integration.raw import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    SECONDS_MAX,
    RawConnection,
    fetch_body,
    produce_body,
    request,
    string,
)

MIB = 1024 * 1024
FRAME_BYTES_MAX = 2 * MIB

NONE, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_REQUIRED_ACKS = 0, 2, 10, 21
UNSUPPORTED_VERSION, UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD = 35, 43, 87


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"socket.request.max.bytes": str(FRAME_BYTES_MAX), "num.partitions": "1"}) as one:
        yield one


@pytest.fixture
def topic(broker) -> str:
    name = f"t-{uuid4().hex}"
    with RawConnection(broker.port) as connection:
        assert connection.create_topic(name) == NONE
    return name


@pytest.fixture(autouse=True)
def _the_next_client_is_served(broker) -> Iterator[None]:
    """Whatever a test did: the broker still takes and gives records, and holds no more memory than before."""
    before = resident_bytes(broker)
    yield
    name = f"after-{uuid4().hex}"
    with RawConnection(broker.port) as connection:
        assert connection.create_topic(name) == NONE
        assert connection.produce_error(name, batch(b"still here")) == (NONE, 0)
        assert b"still here" in connection.fetched(name)
    assert resident_bytes(broker) - before < 64 * MIB


def resident_bytes(broker: LocalBroker) -> int:
    return psutil.Process(broker.pid).memory_info().rss


def batch(*values: bytes, codec: int = 0, control: bool = False) -> bytes:
    records = [NewRecord(1_700_000_000_000, b"key", value) for value in values]
    return build_batch(records, codec=codec, control=control)


def closes(broker: LocalBroker, data: bytes) -> bool:
    """Whether the answer to these bytes is the end of the connection."""
    with RawConnection(broker.port) as connection:
        connection.send(data)
        return connection.is_closed_by_peer()


# --- frames ---


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 2**31 - 1], ids=["one byte too many", "two gigabytes"])
def test_an_oversized_frame_closes_the_connection_before_it_is_read(broker, size):
    assert closes(broker, pack(">i", size))


@pytest.mark.parametrize("size", [-1, -(2**31)])
def test_a_negative_length_closes_the_connection(broker, size):
    assert closes(broker, pack(">i", size))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_frame_too_short_for_a_header_closes_the_connection(broker, size):
    assert closes(broker, pack(">i", size) + bytes(size))


def test_a_frame_of_exactly_the_largest_size_is_answered(broker):
    names, left = [], FRAME_BYTES_MAX - len(request(METADATA, 1)) + 4 - 4
    while left:
        names.append(string("x" * min(30_000, left - 2)))
        left -= len(names[-1])
    frame = request(METADATA, 1, pack(">i", len(names)) + b"".join(names))
    assert len(frame) == 4 + FRAME_BYTES_MAX
    with RawConnection(broker.port) as connection:
        connection.send(frame)
        assert connection.receive()[:4] == pack(">i", 7)


def test_an_unknown_api_closes_the_connection(broker):
    assert closes(broker, request(9999, 0))


def test_a_version_that_is_not_served_closes_the_connection(broker):
    assert closes(broker, request(METADATA, 99))


def test_api_versions_from_the_future_are_answered_in_version_0_with_error_35(broker):
    with RawConnection(broker.port) as connection:
        connection.send(request(API_VERSIONS, 99))
        correlation_id, code, count = unpack_from(">ihi", connection.receive())
        assert (correlation_id, code) == (7, UNSUPPORTED_VERSION)
        assert count > 10
        assert connection.is_served(), "the same connection may ask again"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\xff" * 64,
        bytes(64),
    ],
    ids=["http", "tls", "ones", "zeros"],
)
def test_other_protocols_close_the_connection(broker, data):
    assert closes(broker, data)


@pytest.mark.parametrize("seed", range(50))
def test_garbage_behind_a_valid_header_is_no_harm(broker, seed):
    chance = random.Random(seed)
    garbage = chance.randbytes(chance.randrange(200))
    api = chance.choice([0, 1, 2, 3, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 55, 60, 61, 74, 75])
    with RawConnection(broker.port) as connection:
        connection.send(request(api, chance.randrange(6), garbage))
        # Some garbage is a request; the answer, whichever, ends or the connection does.
        connection.send(request(API_VERSIONS, 0))
        connection.is_closed_by_peer()


def test_half_a_frame_and_silence_ends_at_the_idle_limit():
    with (
        LocalBroker(settings={"connections.max.idle.ms": "300"}) as impatient,
        RawConnection(impatient.port) as silent,
        RawConnection(impatient.port) as half,
    ):
        half.send(request(METADATA, 1, pack(">i", 0))[:9])
        assert half.is_closed_by_peer()
        assert silent.is_closed_by_peer(), "nothing at all is no better"
        with RawConnection(impatient.port) as next_client:
            assert next_client.is_served()


# --- counts ---


def test_negative_counts_close_the_connection(broker):
    for count in (-2, -1000, -(2**31)):
        assert closes(broker, request(METADATA, 1, pack(">i", count))), count
        assert closes(broker, request(PRODUCE, 3, string(None) + pack(">hii", -1, 1000, count))), count


@pytest.mark.parametrize("count", [1_000_000, 2**31 - 1])
def test_a_count_without_its_elements_closes_the_connection_and_costs_nothing(broker, count):
    before = resident_bytes(broker)
    assert closes(broker, request(METADATA, 1, pack(">i", count)))
    assert closes(broker, request(PRODUCE, 3, string(None) + pack(">hii", -1, 1000, count)))
    assert closes(broker, request(FETCH, 4, pack(">iiibi", -1, 0, 1, 0, count) + bytes(20)))
    assert resident_bytes(broker) - before < 16 * MIB


def test_a_million_elements_that_are_really_there_close_the_connection_in_bounded_memory(broker):
    count = 999_999
    before = resident_bytes(broker)
    # Two bytes each: a frame of two megabytes, which as a million Python objects would be fifty times that.
    assert closes(broker, request(METADATA, 1, pack(">i", count) + string("") * count))
    assert resident_bytes(broker) - before < 16 * MIB


def test_a_string_that_claims_more_than_the_frame_has_closes_the_connection(broker):
    assert closes(broker, request(METADATA, 1, pack(">ih", 1, 32767) + b"short"))


def test_tagged_fields_without_end_close_the_connection(broker):
    # ApiVersions version 3 is flexible: its header claims 2^28 tagged fields.
    content = pack(">hhih", API_VERSIONS, 3, 1, -1) + b"\xff\xff\xff\x7f" + bytes(10)
    assert closes(broker, pack(">i", len(content)) + content)


# --- batches ---


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


# --- many ---


def test_a_client_that_never_reads_its_answers_is_held_back_in_bounded_memory(broker, topic):
    value = random.Random(1).randbytes(900_000)
    before = resident_bytes(broker)
    with RawConnection(broker.port) as writer, RawConnection(broker.port) as greedy:
        assert writer.produce_error(topic, batch(value)) == (NONE, 0)
        question = request(FETCH, 4, fetch_body(topic))
        greedy._socket.settimeout(1.0)
        sent = 0
        try:
            # 2,000 answers of 0.9 MB each would be 1.8 GB.
            while sent < 2000 * len(question):
                sent += greedy._socket.send(question * 10)
        except TimeoutError:
            pass
        assert writer.is_served()
        assert resident_bytes(broker) - before < 64 * MIB


def test_an_address_has_a_cap_on_its_connections():
    with LocalBroker(settings={"max.connections.per.ip": "5"}) as small, ExitStack() as open_ones:
        connections = [open_ones.enter_context(RawConnection(small.port)) for _ in range(5)]
        assert all(connection.is_served() for connection in connections)
        with RawConnection(small.port) as one_too_many:
            assert one_too_many.is_closed_by_peer()
        assert connections[0].is_served(), "those that are in stay in"
        connections[4].close()
        while True:  # the broker may not have noticed yet that one has left
            with RawConnection(small.port) as next_client:
                try:
                    if next_client.is_served():
                        break
                except ConnectionError:
                    continue


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 12_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"10,000 connections need {wanted} descriptors, this machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("_many_descriptors")
def test_ten_thousand_connections_are_all_served_in_bounded_memory():
    question = request(API_VERSIONS, 0)
    with LocalBroker() as busy, ExitStack() as open_ones:
        before = resident_bytes(busy)
        connections = []
        for _ in range(10_000):
            one = socket.create_connection(("127.0.0.1", busy.port), SECONDS_MAX)
            connections.append(open_ones.enter_context(one))
        for connection in connections:
            connection.sendall(question)
        assert all(connection.recv(8)[4:] == pack(">i", 7) for connection in connections)
        assert resident_bytes(busy) - before < 200 * MIB, "twenty kilobytes each"
        with RawConnection(busy.port) as next_client:
            assert next_client.is_served()
