"""What members of groups send all the time, by hand: OffsetCommit and Heartbeat against kio, in every version."""

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode, ProtocolError
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.bounded_reader import SMALL_REQUEST_BYTES, BoundedReader, SmallReader, body_reader
from headrace.protocol.codec import error_response, read_request, write_response
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.offset_commit import TOPIC_ID_FROM, OffsetCommitResponse, TopicRows
from headrace.protocol.primitives import Reader
from tests.unit.protocol.kio_messages import kio_bytes, kio_class, kio_read, messages

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def versions(api: ApiKey) -> range:
    return range(SERVED[api].lowest, SERVED[api].highest + 1)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
@FEW
@given(data=st.data())
def test_an_offset_commit_that_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(kio_class(ApiKey.OFFSET_COMMIT, version, "request")))
    request = read_request(ApiKey.OFFSET_COMMIT, version, memoryview(kio_bytes(sent)))
    assert (request.group_id, request.member_id) == (sent.group_id, sent.member_id)
    assert request.generation == sent.generation_id_or_member_epoch
    assert request.instance_id == getattr(sent, "group_instance_id", None)
    assert [
        (
            topic.topic,
            [(one.partition, one.offset, one.leader_epoch, one.metadata) for one in topic.partitions],
        )
        for topic in request.topics
    ] == [
        (
            (topic.topic_id or UUID(int=0)) if version >= TOPIC_ID_FROM else topic.name,
            [
                (
                    one.partition_index,
                    one.committed_offset,
                    getattr(one, "committed_leader_epoch", -1),
                    one.committed_metadata,
                )
                for one in topic.partitions
            ],
        )
        for topic in sent.topics
    ]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_an_offset_commit_response_is_read_by_kio(version: int) -> None:
    topic = UUID(int=7) if version >= TOPIC_ID_FROM else "t"
    rows = [(0, 0), (3, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))]
    body = write_response(ApiKey.OFFSET_COMMIT, version, OffsetCommitResponse([TopicRows(topic, rows)], throttle_ms=5))
    answer = kio_read(kio_class(ApiKey.OFFSET_COMMIT, version, "response"), body)
    (told,) = answer.topics
    assert (told.topic_id if version >= TOPIC_ID_FROM else told.name) == topic
    assert [(one.partition_index, one.error_code.value) for one in told.partitions] == rows


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
@FEW
@given(data=st.data())
def test_a_heartbeat_that_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(kio_class(ApiKey.HEARTBEAT, version, "request")))
    request = read_request(ApiKey.HEARTBEAT, version, memoryview(kio_bytes(sent)))
    instance_id = getattr(sent, "group_instance_id", None)
    assert tuple(request) == (sent.group_id, sent.generation_id, sent.member_id, instance_id)


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_a_heartbeat_response_is_read_by_kio(version: int) -> None:
    told = HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS, throttle_ms=5)
    kind = kio_class(ApiKey.HEARTBEAT, version, "response")
    answer = kio_read(kind, write_response(ApiKey.HEARTBEAT, version, told))
    assert answer.error_code.value == ErrorCode.REBALANCE_IN_PROGRESS
    if version >= 1:
        assert answer.throttle_time == timedelta(milliseconds=5)
    failed = error_response(ApiKey.HEARTBEAT, version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert failed is not None
    assert kio_read(kind, failed).error_code.value == ErrorCode.GROUP_AUTHORIZATION_FAILED


# The reader of small bodies says what the reader of all bodies says.


def read_all(reader: Reader) -> list[object]:
    read: list[object] = []
    try:
        while reader.remaining:
            read.append(reader.nullable_string())
            read.append(reader.nullable_array(1))
            read.append(reader.uvarint())
            read.append(bytes(reader.take(min(reader.remaining, 1))))
    except ProtocolError as error:
        read.append(str(error))
    return read


@FEW
@given(body=st.binary(max_size=64), flexible=st.booleans())
def test_a_small_body_is_read_like_any_other(body: bytes, flexible: bool) -> None:
    small = body_reader(memoryview(body), flexible=flexible)
    assert isinstance(small, SmallReader)
    assert BoundedReader.of_body(small) is small
    assert read_all(small) == read_all(BoundedReader(memoryview(body), flexible=flexible))


def test_a_body_that_is_not_small_has_a_budget() -> None:
    body = memoryview(bytes(SMALL_REQUEST_BYTES + 1))
    reader = body_reader(body, flexible=True)
    assert not isinstance(reader, SmallReader)
    assert type(BoundedReader.of_body(reader)) is BoundedReader
