"""A recognised Produce is the one that reading it would have found, and its answer the one that would be written."""

from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import HeadraceError
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.frames import RequestHeader, parse_request_header
from headrace.protocol.messages.produce import (
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    PartitionResult,
    decode_request,
    encode_response,
)
from headrace.protocol.primitives import array_length, nullable_string, string
from headrace.protocol.produce_fast_path import (
    BATCH_BYTES_MAX,
    PLACES_MAX,
    SAID_BYTES_MAX,
    SUBJECTS_MAX,
    VERSION_MIN,
    ProduceTemplates,
)

FEW = settings(max_examples=30)
VERSIONS = range(VERSION_MIN, SERVED[ApiKey.PRODUCE].highest + 1)
TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def frame_of(
    version: int,
    batch: bytes,
    *,
    topic: str = "orders",
    index: int = 3,
    correlation_id: int = 1,
    acks: int = -1,
    transactional_id: str | None = None,
    client_id: str = "me",
    last_tags: bytes = b"\x00",
) -> memoryview:
    flexible = version >= FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    frame = pack(">hhi", 0, version, correlation_id) + string(client_id, False) + tags
    frame += nullable_string(transactional_id, flexible) + pack(">hi", acks, 1500) + array_length(1, flexible)
    frame += TOPIC_ID.bytes if version >= TOPIC_IDS_FROM else string(topic, flexible)
    frame += array_length(1, flexible) + pack(">i", index) + array_length(len(batch), flexible) + batch
    frame += tags + tags + (last_tags if flexible else b"")
    return memoryview(bytearray(frame))


def learn(known: ProduceTemplates, frame: memoryview) -> None:
    header, reader = parse_request_header(frame)
    known.learn(frame, header, decode_request(reader, header.version))


def read(frame: memoryview) -> tuple[RequestHeader, object]:
    header, reader = parse_request_header(frame)
    return header, decode_request(reader, header.version)


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(first=st.binary(min_size=1, max_size=200), second=st.binary(min_size=1, max_size=200), number=st.integers(0, 99))
def test_what_comes_again_is_recognised(version: int, first: bytes, second: bytes, number: int) -> None:
    known = ProduceTemplates()
    learn(known, frame_of(version, first))
    found = known.recognise(frame_of(version, second, correlation_id=number))
    assert found is not None
    place, correlation_id, records = found
    assert (place.index, place.acks, place.timeout_ms, place.version) == (3, -1, 1500, version)
    assert place.topic == (TOPIC_ID if version >= TOPIC_IDS_FROM else "orders")
    assert (correlation_id, bytes(records)) == (number, second)


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(data=st.data())
def test_whatever_is_recognised_is_what_reading_finds(version: int, data: st.DataObject) -> None:
    """With any bytes of it changed, or its end cut off or something behind it."""
    known = ProduceTemplates()
    learn(known, frame_of(version, b"a batch"))
    frame = bytearray(frame_of(version, data.draw(st.binary(min_size=1, max_size=300))))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))] + data.draw(st.binary(max_size=5))
    found = known.recognise(memoryview(frame))
    if found is None:
        return
    place, correlation_id, records = found
    header, request = read(memoryview(frame))
    assert (header.version, header.correlation_id) == (place.version, correlation_id)
    assert request == (None, place.acks, place.timeout_ms, [(place.topic, [(place.index, records)])])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_the_one_that_would_be_written(version: int) -> None:
    known = ProduceTemplates()
    frame = frame_of(version, b"a batch")
    learn(known, frame)
    found = known.recognise(frame)
    assert found is not None
    place = found[0]
    (expected,) = encode_response(version, 77, [(place.topic, [PartitionResult(3, 0, 2**40, 1_700, 5)])])
    assert place.reply(77, 2**40, 1_700, 5) == expected
    assert place.reply(78, 1, -1, 0) != expected, "each reply is a copy"


def test_several_partitions_are_kept_in_mind_and_no_more_than_a_bound() -> None:
    known = ProduceTemplates()
    for index in range(PLACES_MAX):
        learn(known, frame_of(9, b"batch", index=index))
    assert all(known.recognise(frame_of(9, b"other", index=index)) for index in range(PLACES_MAX))
    learn(known, frame_of(9, b"batch", index=PLACES_MAX))
    assert known.recognise(frame_of(9, b"batch", index=PLACES_MAX))
    assert not known.recognise(frame_of(9, b"batch", index=0))


def test_another_topic_takes_the_place_of_the_one_before_until_there_are_too_many() -> None:
    known = ProduceTemplates()
    for number in range(1, SUBJECTS_MAX + 2):
        learn(known, frame_of(9, b"batch", topic="t" * number))
        assert known.recognise(frame_of(9, b"batch", topic="t" * number))
    learn(known, frame_of(9, b"batch", topic="another"))
    assert not known.recognise(frame_of(9, b"batch", topic="another"))


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(VERSION_MIN - 1, b"batch"),
        frame_of(9, b"batch", acks=0),
        frame_of(9, b"batch", transactional_id="mine"),
        frame_of(9, b""),
        frame_of(9, bytes(BATCH_BYTES_MAX + 1)),
        frame_of(9, b"batch", client_id="c" * SAID_BYTES_MAX),
        frame_of(9, b"batch", last_tags=b"\x01\x05\x02\x00\x00"),
    ],
    ids=["old", "no acks", "in a transaction", "empty", "large", "a long name", "tags"],
)
def test_unusual_requests_are_not_kept_in_mind(frame: memoryview) -> None:
    known = ProduceTemplates()
    try:
        learn(known, frame)
    except HeadraceError:
        pytest.fail("the frame of this case can be read")
    assert known.recognise(frame) is None


def test_batches_of_every_size_are_recognised_up_to_the_largest() -> None:
    known = ProduceTemplates()
    learn(known, frame_of(9, b"batch"))
    for size in (1, 126, 127, 128, BATCH_BYTES_MAX):
        found = known.recognise(frame_of(9, bytes(size)))
        assert found is not None
        assert len(found[2]) == size
    assert known.recognise(frame_of(9, bytes(BATCH_BYTES_MAX + 1))) is None
