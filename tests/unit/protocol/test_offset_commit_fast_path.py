"""A recognised OffsetCommit is what reading it would have found, and its answer the one that would be written."""

from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.frames import correlation_id_of, parse_request_header, response
from headrace.protocol.messages.offset_commit import (
    FLEXIBLE_FROM,
    INSTANCE_FROM,
    LEADER_EPOCH_FROM,
    RETENTION_BEFORE,
    TOPIC_ID_FROM,
    OffsetCommitRequest,
    OffsetCommitResponse,
    TopicRows,
    decode_request,
    encode_response,
)
from headrace.protocol.offset_commit_fast_path import PARTITIONS_MAX, REQUEST_BYTES_MAX, OffsetCommitTemplate
from headrace.protocol.primitives import array_length, nullable_string, string

FEW = settings(max_examples=30)
VERSIONS = range(SERVED[ApiKey.OFFSET_COMMIT].lowest, SERVED[ApiKey.OFFSET_COMMIT].highest + 1)
TOPIC_IDS = (UUID(int=7), UUID(int=2**127 + 5))

Offsets = list[list[int]]  # of each partition of each topic


def frame_of(version: int, offsets: Offsets, *, correlation_id: int = 1, note: str | None = "a note") -> memoryview:
    flexible = version >= FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    frame = pack(">hhi", 8, version, correlation_id) + string("me", False) + tags
    frame += string("group", flexible) + pack(">i", 4) + string("member", flexible)
    frame += nullable_string(None, flexible) if version >= INSTANCE_FROM else b""
    frame += pack(">q", -1) if version < RETENTION_BEFORE else b""
    frame += array_length(len(offsets), flexible)
    for number, partitions in enumerate(offsets):
        frame += TOPIC_IDS[number].bytes if version >= TOPIC_ID_FROM else string(f"topic-{number}", flexible)
        frame += array_length(len(partitions), flexible)
        for index, offset in enumerate(partitions):
            frame += pack(">iq", index, offset) + (pack(">i", 9) if version >= LEADER_EPOCH_FROM else b"")
            frame += nullable_string(note, flexible) + tags
        frame += tags
    return memoryview(bytearray(frame + tags))


def read(frame: memoryview) -> OffsetCommitRequest:
    header, reader = parse_request_header(frame)
    return decode_request(reader, header.version)


def learnt(frame: memoryview) -> OffsetCommitTemplate | None:
    header, reader = parse_request_header(frame)
    return OffsetCommitTemplate.of(frame, header, decode_request(reader, header.version))


offset = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", [[1], [3], [2, 1]])
@FEW
@given(data=st.data())
def test_what_comes_again_is_recognised(version: int, shape: list[int], data: st.DataObject) -> None:
    again = learnt(frame_of(version, [[0] * count for count in shape]))
    assert again is not None
    wanted = [[data.draw(offset) for _ in range(count)] for count in shape]
    frame = frame_of(version, wanted, correlation_id=12)
    assert again.offsets(frame) == tuple(one for topic in wanted for one in topic)
    assert correlation_id_of(frame) == 12


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(data=st.data())
def test_whatever_is_recognised_is_what_reading_finds(version: int, data: st.DataObject) -> None:
    again = learnt(frame_of(version, [[1, 2], [3]]))
    assert again is not None
    frame = bytearray(frame_of(version, [[4, 5], [6]]))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))] + data.draw(st.binary(max_size=4))
    offsets = again.offsets(memoryview(frame))
    if offsets is not None:
        request = read(memoryview(frame))
        assert request._replace(topics=()) == again.request._replace(topics=())
        assert [(topic.topic, len(topic.partitions)) for topic in request.topics] == [
            (topic.topic, len(topic.partitions)) for topic in again.request.topics
        ]
        assert tuple(one.offset for topic in request.topics for one in topic.partitions) == offsets


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_the_one_that_would_be_written(version: int) -> None:
    frame = frame_of(version, [[1, 2], [3]])
    again = learnt(frame)
    assert again is not None
    rows = [TopicRows(topic.topic, [(one.partition, 0) for one in topic.partitions]) for topic in read(frame).topics]
    body = encode_response(version, OffsetCommitResponse(rows))
    assert [again.reply(77)] == response(ApiKey.OFFSET_COMMIT, version, 77, body)


def test_large_requests_are_not_kept_in_mind() -> None:
    assert learnt(frame_of(9, [[0] * PARTITIONS_MAX])) is not None
    assert learnt(frame_of(9, [[0] * (PARTITIONS_MAX + 1)])) is None
    assert learnt(frame_of(9, [[0]], note="n" * REQUEST_BYTES_MAX)) is None
    assert learnt(frame_of(9, [])) is None
