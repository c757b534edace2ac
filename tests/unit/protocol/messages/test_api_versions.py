"""ApiVersions by hand, judged by kio's and kafka-python's readers."""

from typing import Any

import pytest

from headrace.model.errors import ErrorCode, ProtocolError
from headrace.protocol.api import SERVED, ApiKey, response_header_version
from headrace.protocol.codec import read_request
from headrace.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Feature,
    encode_response,
    unsupported_version_body,
)
from tests.unit.protocol import kafka_python
from tests.unit.protocol.kio_messages import kio_class, kio_read

VERSIONS = range(5)
FEATURES = (Feature("group.version", 0, 1, 1), Feature("metadata.version", 7, 27, 27), Feature("off", 1, 2, 0))


def read_back(version: int, response: ApiVersionsResponse) -> Any:
    return kio_read(kio_class(ApiKey.API_VERSIONS, version, "response"), encode_response(version, response))


@pytest.mark.parametrize("version", VERSIONS)
def test_rule_03_exactly_what_is_served_is_advertised(version: int) -> None:
    told = {
        row.api_key: (row.min_version, row.max_version) for row in read_back(version, ApiVersionsResponse()).api_keys
    }
    assert told == {int(api): (served.advertised_lowest, served.highest) for api, served in SERVED.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_rule_02_produce_is_advertised_from_version_0(version: int) -> None:
    rows = {row.api_key: row for row in read_back(version, ApiVersionsResponse()).api_keys}
    assert rows[ApiKey.PRODUCE].min_version == 0


def test_rule_01_an_unsupported_version_is_answered_in_version_0_with_error_35_and_the_list() -> None:
    answer = kio_read(kio_class(ApiKey.API_VERSIONS, 0, "response"), unsupported_version_body())
    assert answer.error_code.value == 35
    assert {row.api_key for row in answer.api_keys} == set(SERVED)


@pytest.mark.parametrize("version", VERSIONS)
def test_rule_01_the_response_header_is_always_version_0(version: int) -> None:
    assert response_header_version(ApiKey.API_VERSIONS, version) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_reads_the_list(version: int) -> None:
    body = encode_response(version, ApiVersionsResponse(features=FEATURES, features_epoch=3, throttle_ms=9))
    told = kafka_python.metadata.ApiVersionsResponse.decode(body, version=version)
    assert told.error_code == 0
    assert {(row.api_key, row.min_version, row.max_version) for row in told.api_keys} == {
        (int(api), served.advertised_lowest, served.highest) for api, served in SERVED.items()
    }
    if version >= 1:
        assert told.throttle_time_ms == 9
    if version >= 3:
        assert told.finalized_features_epoch == 3


def test_features_are_told_with_their_range_and_level() -> None:
    answer = read_back(4, ApiVersionsResponse(features=FEATURES, features_epoch=12))
    assert [(one.name, one.min_version, one.max_version) for one in answer.supported_features] == [
        ("group.version", 0, 1),
        ("metadata.version", 7, 27),
        ("off", 1, 2),
    ]
    assert [(one.name, one.min_version_level, one.max_version_level) for one in answer.finalized_features] == [
        ("group.version", 1, 1),
        ("metadata.version", 27, 27),
    ]
    assert answer.finalized_features_epoch == 12


def test_clients_of_version_3_are_not_told_of_ranges_that_start_at_0() -> None:
    answer = read_back(3, ApiVersionsResponse(features=FEATURES))
    assert [one.name for one in answer.supported_features] == ["metadata.version", "off"]
    assert [one.name for one in answer.finalized_features] == ["group.version", "metadata.version"]


def test_rule_05_features_that_do_not_exist_take_no_tagged_field() -> None:
    with_epoch = encode_response(3, ApiVersionsResponse())
    without = encode_response(3, ApiVersionsResponse(features_epoch=-1))
    assert without.endswith(b"\x00")
    assert with_epoch == without[:-1] + b"\x01" + b"\x01\x08" + bytes(8)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_of_kafka_python_is_read(version: int) -> None:
    body = bytes(
        kafka_python.metadata.ApiVersionsRequest(
            client_software_name="kafka-python", client_software_version="3.0.12"
        ).encode(version=version)
    )
    request = read_request(ApiKey.API_VERSIONS, version, memoryview(body))
    assert request == (("kafka-python", "3.0.12") if version >= 3 else ("", ""))
    assert request.is_valid


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a\n[fake log line]", "é", "."])
def test_a_software_name_that_could_forge_a_log_is_not_valid(name: str) -> None:
    assert not ApiVersionsRequest(name, "1.0").is_valid


@pytest.mark.parametrize("body", [b"", b"\x02a", b"\x02a\x02b", b"\x02a\x02b\x00\x00", b"\x00\x00\x00"])
def test_broken_requests_are_protocol_errors(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_request(ApiKey.API_VERSIONS, 3, memoryview(body))


def test_errors_are_told() -> None:
    assert read_back(2, ApiVersionsResponse(ErrorCode.INVALID_REQUEST)).error_code.value == 42
