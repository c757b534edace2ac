"""Metadata by hand, judged by kio and kafka-python."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode, ProtocolError
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import read_request
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    Node,
    PartitionRow,
    encode_partitions,
    encode_response,
    encode_topic,
    partition_layout,
)
from tests.unit.protocol import kafka_python
from tests.unit.protocol.kio_messages import kio_bytes, kio_class, kio_read, messages

VERSIONS = range(14)
TOPIC_ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
ROWS = (
    PartitionRow(0, 1, 7, (1, 2), (1,), (2,)),
    PartitionRow(1, -1, 8, (1, 2, 3), (), (), ErrorCode.LEADER_NOT_AVAILABLE),
)


def decode(version: int, body: bytes) -> MetadataRequest:
    request: MetadataRequest = read_request(ApiKey.METADATA, version, memoryview(body))
    return request


def a_response(version: int) -> bytes:
    known = encode_topic(version, "t", TOPIC_ID, encode_partitions(version, ROWS), is_internal=True, operations=3)
    unknown = encode_topic(version, None, UUID(int=5), error=ErrorCode.UNKNOWN_TOPIC_ID)
    nodes = [Node(1, "localhost", 9092, "rack-a"), Node(2, "::1", 9093, None)]
    return encode_response(version, MetadataResponse(nodes, "a-cluster", 2, 2, known + unknown, 6, ErrorCode.NONE, 11))


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_every_field_of_a_response(version: int) -> None:
    answer = kio_read(kio_class(ApiKey.METADATA, version, "response"), a_response(version))
    assert [(node.node_id, node.host, node.port) for node in answer.brokers] == [
        (1, "localhost", 9092),
        (2, "::1", 9093),
    ]
    topic, unknown = answer.topics
    first, second = topic.partitions
    assert (topic.name, topic.error_code.value) == ("t", 0)
    assert (unknown.name, unknown.error_code.value) == (None if version >= 12 else "", 100)
    assert (first.partition_index, first.leader_id, first.replica_nodes, first.isr_nodes) == (0, 1, (1, 2), (1,))
    assert (second.error_code.value, second.leader_id, second.replica_nodes) == (5, -1, (1, 2, 3))
    if version >= 1:
        assert [node.rack for node in answer.brokers] == ["rack-a", None]
        assert answer.controller_id == 2
        assert topic.is_internal is True
    if version >= 2:
        assert answer.cluster_id == "a-cluster"
    if version >= 5:
        assert first.offline_replicas == (2,)
    if version >= 8:
        assert topic.topic_authorized_operations == 3
    if 8 <= version <= 10:
        assert answer.cluster_authorized_operations == 6
    if version >= 10:
        assert (topic.topic_id, unknown.topic_id) == (TOPIC_ID, UUID(int=5))


@pytest.mark.parametrize("version", range(7, 14))
def test_rule_17_leader_epochs_are_told(version: int) -> None:
    answer = kio_read(kio_class(ApiKey.METADATA, version, "response"), a_response(version))
    assert [partition.leader_epoch for partition in answer.topics[0].partitions] == [7, 8]


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_reads_a_response(version: int) -> None:
    answer = kafka_python.metadata.MetadataResponse.decode(a_response(version), version=version)
    assert [broker.port for broker in answer.brokers] == [9092, 9093]
    assert [[p.replica_nodes for p in topic.partitions] for topic in answer.topics] == [[[1, 2], [1, 2, 3]], []]
    if version >= 13:
        assert answer.error_code == 0


def test_version_13_tells_the_error_of_the_whole_request() -> None:
    body = encode_response(13, MetadataResponse([], None, -1, 0, b"", error=ErrorCode.REBOOTSTRAP_REQUIRED))
    assert kio_read(kio_class(ApiKey.METADATA, 13, "response"), body).error_code.value == 129


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_request_that_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(kio_class(ApiKey.METADATA, version, "request")))
    body = kio_bytes(sent)
    broken = [
        topic
        for topic in sent.topics or ()
        if version >= 10 and (topic.name is None if topic.topic_id is None else version < 12)
    ]
    if broken:
        with pytest.raises(ProtocolError):
            decode(version, body)
        return
    request = decode(version, body)
    if sent.topics is None or (version == 0 and not sent.topics):
        assert request.topics is None
    else:
        assert request.topics == tuple(getattr(one, "topic_id", None) or one.name for one in sent.topics)
    for ours, theirs in [
        ("allow_auto_create", "allow_auto_topic_creation"),
        ("include_cluster_operations", "include_cluster_authorized_operations"),
        ("include_topic_operations", "include_topic_authorized_operations"),
    ]:
        if hasattr(sent, theirs):
            assert getattr(request, ours) == getattr(sent, theirs)


def test_rule_20_in_version_0_the_empty_list_asks_for_all_topics() -> None:
    assert decode(0, b"\x00\x00\x00\x00").topics is None


@pytest.mark.parametrize("version", range(1, 14))
def test_rule_20_from_version_1_on_null_asks_for_all_and_the_empty_list_for_none(version: int) -> None:
    everything = bytes(kafka_python.metadata.MetadataRequest(topics=None).encode(version=version))
    nothing = bytes(kafka_python.metadata.MetadataRequest(topics=[]).encode(version=version))
    assert decode(version, everything).topics is None
    assert decode(version, nothing).topics == ()


@pytest.mark.parametrize("version", range(4))
def test_rule_20_old_versions_allow_automatic_creation(version: int) -> None:
    assert decode(version, b"\x00\x00\x00\x00").allow_auto_create


def test_librdkafkas_way_of_asking_for_all_topics_is_understood() -> None:
    request = decode(13, bytes.fromhex("00000000010000"))
    assert request.topics is None


BROKEN = {
    "null in version 0": (0, b"\xff\xff\xff\xff"),
    "a million topics in twenty bytes": (1, b"\x00\x0f\x42\x40" + bytes(16)),
    "a negative count": (1, b"\xff\xff\xff\xf0" + bytes(16)),
    "the largest compact count": (9, b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "bytes left over": (9, b"\x01\x01\x00\x00\x00\x00"),
    "an id before ids could be asked for": (11, b"\x02" + b"\x01" * 16 + b"\x00\x00" + b"\x01\x00\x00"),
    "neither name nor id": (12, b"\x02" + bytes(16) + b"\x00\x00" + b"\x01\x00\x00"),
    "the middle of a name": (1, b"\x00\x00\x00\x01\x00\x09abc"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_requests_are_protocol_errors(broken: str) -> None:
    version, body = BROKEN[broken]
    with pytest.raises(ProtocolError):
        decode(version, body)


def test_a_layout_has_the_same_bytes_in_all_its_versions() -> None:
    for version in VERSIONS:
        assert encode_partitions(version, ROWS) == encode_partitions(partition_layout(version), ROWS)


def test_a_response_of_ten_thousand_partitions_is_whole() -> None:
    rows = [PartitionRow(number, 1, 5, (1,), (1,)) for number in range(10_000)]
    block = encode_topic(12, "t", TOPIC_ID, encode_partitions(9, rows))
    body = encode_response(12, MetadataResponse([], "c", 1, 1, block))
    answer: Any = kio_read(kio_class(ApiKey.METADATA, 12, "response"), body)
    assert [row.partition_index for row in answer.topics[0].partitions] == list(range(10_000))
