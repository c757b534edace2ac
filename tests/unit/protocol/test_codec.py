import contextlib
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode, ProtocolError
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.bounded_reader import COLD_REQUEST_BYTES_MAX, MEMORY_FLOOR, MEMORY_PER_BYTE_MAX, BoundedReader
from headrace.protocol.codec import error_response, read_request, write_response
from headrace.protocol.schema import EPOCH
from headrace.protocol.schema_reader import compile_reader
from headrace.protocol.schema_writer import compile_writer
from tests.unit.protocol.kio_messages import (
    COMPILED,
    COMPILED_VERSIONS,
    as_version,
    compact_array,
    kio_bytes,
    kio_class,
    kio_read,
    legacy_array,
    messages,
)

FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def versions_of(api: ApiKey) -> range:
    return range(SERVED[api].lowest, SERVED[api].highest + 1)


@pytest.mark.parametrize("api", COMPILED, ids=lambda api: api.name)
@FEW
@given(data=st.data())
def test_a_request_that_kio_wrote_is_read_as_the_newest_version(api: ApiKey, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(api)))
    sent = data.draw(messages(kio_class(api, version, "request")))
    received = read_request(api, version, memoryview(kio_bytes(sent)))
    assert type(received) is kio_class(api, SERVED[api].highest, "request")
    if api is not ApiKey.DELETE_TOPICS or version == SERVED[api].highest:
        assert as_version(received, type(sent)) == sent


@pytest.mark.parametrize("api", COMPILED, ids=lambda api: api.name)
@FEW
@given(data=st.data())
def test_a_response_is_read_by_kio_in_every_version(api: ApiKey, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(api)))
    response = data.draw(messages(kio_class(api, SERVED[api].highest, "response")))
    older = kio_class(api, version, "response")
    expected = as_version(response, older)
    body = write_response(api, version, response)
    assert body == kio_bytes(expected)
    assert kio_read(older, body) == expected


@FEW
@given(data=st.data())
def test_no_time_is_written_as_kio_writes_it(data: st.DataObject) -> None:
    api = ApiKey.DESCRIBE_TRANSACTIONS
    response = data.draw(messages(kio_class(api, 0, "response")))
    none = tuple(
        replace(one, transaction_start_time=EPOCH - timedelta(milliseconds=1)) for one in response.transaction_states
    )
    response = replace(response, transaction_states=none)
    assert write_response(api, 0, response) == kio_bytes(response)


@pytest.mark.parametrize("version", range(1, 6))
def test_delete_topics_by_name_reads_like_the_newest_version(version: int) -> None:
    names = ("first", "second")
    sent = kio_class(ApiKey.DELETE_TOPICS, version, "request")(topic_names=names, timeout=timedelta(seconds=3))
    received = read_request(ApiKey.DELETE_TOPICS, version, memoryview(kio_bytes(sent)))
    assert [(topic.name, topic.topic_id) for topic in received.topics] == [("first", None), ("second", None)]
    assert received.timeout == timedelta(seconds=3)


def test_fields_that_a_version_does_not_have_take_the_default_of_the_schema() -> None:
    body = kio_bytes(kio_class(ApiKey.DESCRIBE_CLUSTER, 0, "request")(include_cluster_authorized_operations=True))
    request = read_request(ApiKey.DESCRIBE_CLUSTER, 0, memoryview(body))
    assert request.endpoint_type == 1
    assert request.include_fenced_brokers is False


def test_a_missing_id_is_written_as_zeros() -> None:
    newest = kio_class(ApiKey.DELETE_TOPICS, 6, "response")
    row = newest.__dataclass_fields__["responses"].type.__args__[0]
    response = newest(throttle_time=timedelta(0), responses=(row(name="a", topic_id=None, error_code=ErrorCode.NONE),))
    assert bytes(16) in write_response(ApiKey.DELETE_TOPICS, 6, response)


def test_rule_05_compact_lengths_are_one_more_and_null_is_zero() -> None:
    newest = kio_class(ApiKey.DESCRIBE_LOG_DIRS, 5, "request")
    assert read_request(ApiKey.DESCRIBE_LOG_DIRS, 5, memoryview(b"\x00\x00")).topics is None
    assert read_request(ApiKey.DESCRIBE_LOG_DIRS, 5, memoryview(b"\x01\x00")).topics == ()
    one = read_request(ApiKey.DESCRIBE_LOG_DIRS, 5, memoryview(b"\x02\x02t\x01\x00\x00"))
    assert isinstance(one, newest)
    assert one.topics[0].topic == "t"
    assert one.topics[0].partitions == ()


def test_rule_05_default_valued_tagged_fields_are_omitted() -> None:
    from kio.schema.create_topics.v7.response import CreatableTopicResult

    write = compile_writer(CreatableTopicResult, CreatableTopicResult)
    row = CreatableTopicResult(
        name="t",  # type: ignore[arg-type]
        topic_id=UUID(int=7),
        error_code=ErrorCode.NONE,  # type: ignore[arg-type]
        error_message=None,
        configs=None,
    )
    plain, tagged = bytearray(), bytearray()
    write(plain, row)
    write(tagged, replace(row, topic_config_error_code=29))  # type: ignore[arg-type]
    assert plain.endswith(b"\x00"), "no tagged field"
    assert tagged == plain[:-1] + bytes([1, 0, 2, 0, 29])


def test_known_tagged_fields_are_read_and_unknown_ones_skipped() -> None:
    from kio.schema.create_topics.v7.response import CreatableTopicResult

    read = compile_reader(CreatableTopicResult, CreatableTopicResult)
    fields = b"\x02t" + bytes(16) + b"\x00\x00\x00" + b"\xff\xff\xff\xff" + b"\xff\xff" + b"\x00"
    tags = b"\x02" + b"\x00\x02\x00\x1d" + b"\x05\x03abc"
    row = read(BoundedReader(memoryview(fields + tags), flexible=True))
    assert row.name == "t"
    assert row.topic_config_error_code == 29


BROKEN = {
    "an empty frame": (ApiKey.DELETE_RECORDS, 0, b""),
    "more elements than bytes": (ApiKey.DELETE_TOPICS, 1, legacy_array(2**31 - 1) + b"\x00" * 20),
    "a million elements": (ApiKey.DELETE_TOPICS, 1, legacy_array(1_000_000) + b"\x00" * 20),
    "a negative count": (ApiKey.DELETE_TOPICS, 1, legacy_array(-5) + b"\x00" * 20),
    "null where an array must be": (ApiKey.DELETE_TOPICS, 1, legacy_array(-1) + b"\x00" * 4),
    "the count that makes kio allocate 32 GiB": (
        ApiKey.DELETE_TOPICS,
        6,
        b"\xff\xff\xff\xff\x0f" + b"\x00" * 20,
    ),
    "a compact count beyond the frame": (ApiKey.DELETE_TOPICS, 6, compact_array(2**27) + b"\x00" * 20),
    "too many tagged fields": (ApiKey.DESCRIBE_CONFIGS, 4, b"\x01\x00\x00\xff\xff\xff\x7f" + b"\x00" * 20),
    "a tagged field beyond the frame": (ApiKey.DESCRIBE_CONFIGS, 4, b"\x01\x00\x00\x01\x05\xff\x7fabc"),
    "a string that is not UTF-8": (ApiKey.DELETE_TOPICS, 1, legacy_array(1) + b"\x00\x02\xff\xfe" + b"\0" * 4),
    "a string beyond the frame": (ApiKey.DELETE_TOPICS, 1, legacy_array(1) + b"\x7f\xffab"),
    "bytes left over": (ApiKey.DESCRIBE_CONFIGS, 4, b"\x01\x00\x00\x00z"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_bytes_that_are_no_request_are_a_protocol_error(broken: str) -> None:
    api, version, body = BROKEN[broken]
    with pytest.raises(ProtocolError):
        read_request(api, version, memoryview(body))


def test_unknown_tagged_fields_are_skipped() -> None:
    request = read_request(ApiKey.DESCRIBE_CONFIGS, 4, memoryview(b"\x01\x01\x00\x01\x05\x03abc"))
    assert request.resources == ()
    assert request.include_synonyms is True


def test_a_frame_above_the_limit_is_refused_before_it_is_read() -> None:
    body = compact_array(10) + bytes(COLD_REQUEST_BYTES_MAX)
    with pytest.raises(ProtocolError, match="at most"):
        read_request(ApiKey.DELETE_TOPICS, 6, memoryview(body))


DENSE = {
    "two-letter strings": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        b"\x02\x02\x01" + compact_array(300_000) + b"\x03ab" * 300_000 + b"\x00\x00\x00\x00",
    ),
    "numbers of one byte": (
        ApiKey.LIST_CONFIG_RESOURCES,
        1,
        compact_array(300_000) + b"\x80" * 300_000 + b"\x00",
    ),
    "structs of three bytes": (
        ApiKey.ALTER_CONFIGS,
        2,
        b"\x02\x02\x01" + compact_array(200_000) + b"\x01\x00\x00" * 200_000 + b"\x00\x00\x00",
    ),
    "topics of four bytes": (
        ApiKey.METADATA,
        9,
        compact_array(200_000) + b"\x03ab\x00" * 200_000 + b"\x00\x00\x00\x00",
    ),
    "topics without partitions": (
        ApiKey.LIST_OFFSETS,
        6,
        bytes(5) + compact_array(200_000) + b"\x02t\x01\x00" * 200_000 + b"\x00",
    ),
    "configs of three bytes": (
        ApiKey.CREATE_TOPICS,
        5,
        b"\x02\x02t" + bytes(6) + b"\x01" + compact_array(200_000) + b"\x01\x00\x00" * 200_000 + bytes(8),
    ),
}


@pytest.mark.parametrize("dense", DENSE)
def test_tiny_elements_never_outgrow_sixteen_times_their_frame(dense: str) -> None:
    api, version, body = DENSE[dense]
    with pytest.raises(ProtocolError):  # also compiles the reader, which is not to be measured
        read_request(api, version, memoryview(b"\xff"))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="memory budget"):
            read_request(api, version, memoryview(body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY_PER_BYTE_MAX * len(body) + MEMORY_FLOOR


def test_the_densest_honest_request_fits_the_budget() -> None:
    """A consumer that checks 20,000 partitions for truncation, in the version that librdkafka speaks."""
    from kio.schema.offset_for_leader_epoch.v2.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )

    rows = tuple(
        OffsetForLeaderPartition(partition=number, current_leader_epoch=10**6, leader_epoch=10**6)  # type: ignore[arg-type]
        for number in range(20_000)
    )
    request: Any = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=rows),))  # type: ignore[arg-type]
    received = read_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, memoryview(kio_bytes(request)))
    assert len(received.topics[0].partitions) == 20_000


@settings(max_examples=300, deadline=None)
@given(which=st.sampled_from(COMPILED_VERSIONS), body=st.binary(max_size=200))
def test_random_bytes_give_a_request_or_a_protocol_error(which: tuple[ApiKey, int], body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        read_request(*which, memoryview(body))


def test_an_error_of_a_whole_request_has_a_body_where_the_api_has_a_place_for_it() -> None:
    body = error_response(ApiKey.DESCRIBE_CLUSTER, 1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert body is not None
    assert kio_read(kio_class(ApiKey.DESCRIBE_CLUSTER, 1, "response"), body).error_code.value == 31
    body = error_response(ApiKey.INIT_PRODUCER_ID, 4, ErrorCode.INVALID_REQUEST)
    assert body is not None
    assert kio_read(kio_class(ApiKey.INIT_PRODUCER_ID, 4, "response"), body).error_code.value == 42


def test_an_api_whose_errors_stand_in_rows_has_no_such_body() -> None:
    assert error_response(ApiKey.DELETE_RECORDS, 2, ErrorCode.UNKNOWN_SERVER_ERROR) is None
    assert error_response(ApiKey.LIST_OFFSETS, 7, ErrorCode.UNKNOWN_SERVER_ERROR) is None


def run_python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_messages_on_the_way_to_the_first_record_load_no_kio() -> None:
    program = """
import sys
import headrace.protocol.codec as messages
from headrace.protocol.api import ApiKey
for api, version, body in [
    (ApiKey.API_VERSIONS, 3, b"\\x02a\\x02b\\x00"),
    (ApiKey.METADATA, 9, b"\\x00\\x01\\x00\\x00\\x00"),
    (ApiKey.CREATE_TOPICS, 5, b"\\x01" + bytes(6)),
    (ApiKey.INIT_PRODUCER_ID, 2, bytes(6)),
    (ApiKey.LIST_OFFSETS, 6, bytes(5) + b"\\x01\\x00"),
]:
    messages.read_request(api, version, memoryview(body))
print([name for name in sys.modules if name.partition(".")[0] in ("kio", "hypothesis", "pydantic")])
"""
    assert run_python(program).strip() == "[]"


def test_the_first_cold_message_loads_neither_hypothesis_nor_kios_own_codecs() -> None:
    program = """
import sys
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import read_request
read_request(ApiKey.DESCRIBE_CLUSTER, 0, memoryview(b"\\x00\\x00"))
print([name for name in ("hypothesis", "kio.serial", "kio._kio_native") if name in sys.modules])
"""
    assert run_python(program).strip() == "[]"
