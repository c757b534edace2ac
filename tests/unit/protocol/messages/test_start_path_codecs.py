"""The other codecs by hand, on the way to the first record: CreateTopics, InitProducerId, ListOffsets."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode, ProtocolError
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import read_request, write_response
from headrace.protocol.messages.create_topics import ConfigRow, CreatedTopic, CreateTopicsResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.list_offsets import ListOffsetsResponse, PartitionAnswer
from tests.unit.protocol import kafka_python
from tests.unit.protocol.kio_messages import kio_bytes, kio_class, kio_read, messages

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def versions(api: ApiKey) -> range:
    return range(SERVED[api].lowest, SERVED[api].highest + 1)


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def read_back(api: ApiKey, version: int, response: Any) -> Any:
    return kio_read(kio_class(api, version, "response"), write_response(api, version, response))


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
@FEW
@given(data=st.data())
def test_create_topics_that_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(kio_class(ApiKey.CREATE_TOPICS, version, "request")))
    request = read_request(ApiKey.CREATE_TOPICS, version, memoryview(kio_bytes(sent)))
    assert (request.timeout_ms, request.validate_only) == (milliseconds(sent.timeout), sent.validate_only)
    assert [tuple(topic) for topic in request.topics] == [
        (
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            tuple((one.partition_index, one.broker_ids) for one in topic.assignments),
            tuple((one.name, one.value) for one in topic.configs),
        )
        for topic in sent.topics
    ]


CREATED = CreateTopicsResponse(
    [
        CreatedTopic("taken", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'taken' already exists."),
        CreatedTopic(
            "new",
            topic_id=UUID(int=9),
            partitions=3,
            replication_factor=1,
            configs=[ConfigRow("a", "b", False, 5, True)],
        ),
        CreatedTopic("secret", topic_id=UUID(int=10), config_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
    throttle_ms=4,
)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_create_topics_responses_are_read_by_kio_and_kafka_python(version: int) -> None:
    answer = read_back(ApiKey.CREATE_TOPICS, version, CREATED)
    taken, new, secret = answer.topics
    assert answer.throttle_time == timedelta(milliseconds=4)
    assert (taken.name, taken.error_code.value, taken.error_message) == ("taken", 36, "Topic 'taken' already exists.")
    assert (new.name, new.error_code.value, new.error_message) == ("new", 0, None)
    if version >= 5:
        assert (new.num_partitions, new.replication_factor) == (3, 1)
        row = new.configs[0]
        assert (row.name, row.value, row.read_only, row.config_source, row.is_sensitive) == ("a", "b", False, 5, True)
        assert (secret.configs, secret.topic_config_error_code) == (None, 29)
    if version >= 7:
        assert new.topic_id == UUID(int=9)
    theirs = kafka_python.admin.CreateTopicsResponse.decode(
        write_response(ApiKey.CREATE_TOPICS, version, CREATED), version=version
    )
    assert [(topic.name, topic.error_code) for topic in theirs.topics] == [("taken", 36), ("new", 0), ("secret", 0)]


def test_rule_05_the_config_error_of_a_new_topic_is_omitted_while_there_is_none() -> None:
    plain = write_response(ApiKey.CREATE_TOPICS, 5, CreateTopicsResponse([CreatedTopic("t")]))
    denied = write_response(ApiKey.CREATE_TOPICS, 5, CreateTopicsResponse([CreatedTopic("t", config_error=29)]))
    assert denied == plain[:-2] + bytes([1, 0, 2, 0, 29]) + b"\x00"


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
@FEW
@given(data=st.data())
def test_init_producer_id_that_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(kio_class(ApiKey.INIT_PRODUCER_ID, version, "request")))
    request = read_request(ApiKey.INIT_PRODUCER_ID, version, memoryview(kio_bytes(sent)))
    assert request == (
        sent.transactional_id,
        milliseconds(sent.transaction_timeout),
        getattr(sent, "producer_id", -1),
        getattr(sent, "producer_epoch", -1),
    )


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id_responses_are_read_by_kio_and_kafka_python(version: int) -> None:
    response = InitProducerIdResponse(ErrorCode.NONE, 2**40, 3, 5)
    answer = read_back(ApiKey.INIT_PRODUCER_ID, version, response)
    assert (answer.error_code.value, answer.producer_id, answer.producer_epoch) == (0, 2**40, 3)
    assert answer.throttle_time == timedelta(milliseconds=5)
    body = write_response(ApiKey.INIT_PRODUCER_ID, version, response)
    assert kafka_python.producer.InitProducerIdResponse.decode(body, version=version).producer_id == 2**40


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS))
@FEW
@given(data=st.data())
def test_list_offsets_that_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent = data.draw(messages(kio_class(ApiKey.LIST_OFFSETS, version, "request")))
    request = read_request(ApiKey.LIST_OFFSETS, version, memoryview(kio_bytes(sent)))
    assert request.replica_id == sent.replica_id
    assert request.read_committed == (getattr(sent, "isolation_level", 0) == 1)
    assert request.timeout_ms == (milliseconds(sent.timeout) if version >= 10 else 0)
    assert [(name, [tuple(one) for one in partitions]) for name, partitions in request.topics] == [
        (
            topic.name,
            [
                (one.partition_index, getattr(one, "current_leader_epoch", -1), one.timestamp)
                for one in topic.partitions
            ],
        )
        for topic in sent.topics
    ]


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS))
def test_list_offsets_responses_are_read_by_kio_and_kafka_python(version: int) -> None:
    answers = [
        PartitionAnswer(4, ErrorCode.NONE, 1_700_000_000_000, 99, 7),
        PartitionAnswer(5, ErrorCode.FENCED_LEADER_EPOCH),
    ]
    response = ListOffsetsResponse([("t", answers), ("empty", [])], throttle_ms=2)
    answer = read_back(ApiKey.LIST_OFFSETS, version, response)
    assert [topic.name for topic in answer.topics] == ["t", "empty"]
    good, bad = answer.topics[0].partitions
    assert (good.partition_index, good.timestamp, good.offset) == (4, 1_700_000_000_000, 99)
    assert (bad.error_code.value, bad.timestamp, bad.offset) == (74, -1, -1)
    if version >= 4:
        assert (good.leader_epoch, bad.leader_epoch) == (7, -1)
    body = write_response(ApiKey.LIST_OFFSETS, version, response)
    theirs = kafka_python.consumer.ListOffsetsResponse.decode(body, version=version)
    assert [partition.offset for partition in theirs.topics[0].partitions] == [99, -1]


BROKEN = {
    "a million topics": (ApiKey.CREATE_TOPICS, 4, b"\x00\x0f\x42\x40" + bytes(30)),
    "null topics": (ApiKey.CREATE_TOPICS, 4, b"\xff\xff\xff\xff" + bytes(5)),
    "null configs": (ApiKey.CREATE_TOPICS, 5, b"\x02\x02t" + bytes(6) + b"\x01\x00\x00" + bytes(6)),
    "left over": (ApiKey.CREATE_TOPICS, 4, bytes(10)),
    "half an id": (ApiKey.INIT_PRODUCER_ID, 3, b"\x00" + bytes(4) + bytes(9)),
    "left over after an id": (ApiKey.INIT_PRODUCER_ID, 0, b"\xff\xff" + bytes(5)),
    "null topics to list": (ApiKey.LIST_OFFSETS, 1, bytes(4) + b"\xff\xff\xff\xff"),
    "many partitions": (ApiKey.LIST_OFFSETS, 6, bytes(5) + b"\x02\x02t\xff\xff\xff\x7f" + bytes(9)),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_requests_are_protocol_errors(broken: str) -> None:
    api, version, body = BROKEN[broken]
    with pytest.raises(ProtocolError):
        read_request(api, version, memoryview(body))
