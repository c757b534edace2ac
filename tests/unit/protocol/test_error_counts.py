"""Errors in responses: each code is counted as often as a client reads it, for every API."""

from collections import Counter
from typing import Any

import pytest

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import BY_HAND, count_errors, encode_element, message_class, write_response
from headrace.protocol.error_counts import EncodedWithErrors, compile_counter
from headrace.protocol.schema import describe
from tests.unit.protocol.kio_messages import kio_read

ROWS = 3
COMPILED = sorted(set(SERVED) - BY_HAND)


def filled(message: type[Any], codes: list[int]) -> Any:
    """A response with `ROWS` elements in each array, and another error code at each place that has one."""
    values: dict[str, Any] = {}
    for field in describe(message):
        if field.struct is not None and field.is_array:
            values[field.name] = tuple(filled(field.struct, codes) for _ in range(ROWS))
        elif field.struct is not None:
            values[field.name] = None if field.nullable else filled(field.struct, codes)
        elif field.kind == "error_code":
            codes.append(len(codes) % 100 + 1)
            values[field.name] = codes[-1]
        else:
            values[field.name] = field.default
    return message(**values)


@pytest.mark.parametrize("api", sorted(SERVED), ids=lambda api: api.name)
def test_every_error_code_of_a_schema_is_counted(api: ApiKey) -> None:
    codes: list[int] = []
    message = message_class(api, SERVED[api].highest, "response")
    response = filled(message, codes)
    counts: Counter[int] = Counter()
    compile_counter(message)(response, counts)
    assert codes, "every response of Kafka has a place for errors"
    assert counts == Counter(codes)


@pytest.mark.parametrize("api", COMPILED, ids=lambda api: api.name)
def test_success_counts_nothing(api: ApiKey) -> None:
    message = message_class(api, SERVED[api].highest, "response")
    response = message(**{field.name: field.default for field in describe(message)})
    counts: Counter[int] = Counter()
    count_errors(api, SERVED[api].highest, response, counts)
    assert not counts


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_encoded_elements_bring_their_errors(error: ErrorCode) -> None:
    api = ApiKey.ELECT_LEADERS
    version = SERVED[api].highest
    message = message_class(api, version, "response")
    topic_class = next(one.struct for one in describe(message) if one.is_array)
    assert topic_class is not None
    row_class = next(one.struct for one in describe(topic_class) if one.is_array)
    assert row_class is not None
    row = row_class(partition_id=0, error_code=error, error_message=None)
    rows = tuple(encode_element(api, version, "replica_election_results.partition_result", row) for _ in range(ROWS))
    topic = encode_element(api, version, "replica_election_results", topic_class(topic="t", partition_result=rows))
    values = {field.name: field.default for field in describe(message)}
    response = message(**{**values, "replica_election_results": (topic,)})
    counts: Counter[int] = Counter()
    count_errors(api, version, response, counts)
    assert counts == ({error: ROWS} if error else {})
    assert isinstance(topic, EncodedWithErrors) == bool(error)
    read = kio_read(message, write_response(api, version, response))
    assert [row.error_code.value for row in read.replica_election_results[0].partition_result] == [error] * ROWS
