"""Frames, headers and counts that make no sense: the connection ends, and costs nothing."""

import random
from struct import pack, unpack_from

import pytest

from headrace.testing import LocalBroker
from tests.integration.bad_input.kit import FRAME_BYTES_MAX, MIB, UNSUPPORTED_VERSION, closes, resident_bytes
from tests.integration.raw import API_VERSIONS, FETCH, METADATA, PRODUCE, RawConnection, request, string


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
        # Some garbage is a request. Then its answer comes first, and the connection goes on; else it ends.
        try:
            connection.send(request(API_VERSIONS, 0, correlation_id=99))
            while connection.receive()[:4] != pack(">i", 99):
                pass
        except ConnectionError:
            pass


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
