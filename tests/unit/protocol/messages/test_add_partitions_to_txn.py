"""AddPartitionsToTxn by hand: two shapes under one key, both as kio writes and reads them."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import error_response, read_request, write_response
from headrace.protocol.messages.add_partitions_to_txn import MANY_FROM, AddPartitionsToTxnResponse, TransactionResult
from tests.unit.protocol.kio_messages import kio_bytes, kio_class, kio_read, messages

API = ApiKey.ADD_PARTITIONS_TO_TXN
VERSIONS = range(SERVED[API].lowest, SERVED[API].highest + 1)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def partitions(topics: Any) -> list[tuple[str, int]]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(data=st.data())
def test_what_kio_wrote_is_read(version: int, data: st.DataObject) -> None:
    sent: Any = data.draw(messages(kio_class(API, version, "request")))
    request = read_request(API, version, memoryview(kio_bytes(sent)))
    if version < MANY_FROM:
        (one,) = request.transactions
        owner = (sent.v3_and_below_transactional_id, sent.v3_and_below_producer_id, sent.v3_and_below_producer_epoch)
        assert tuple(one) == (*owner, False, partitions(sent.v3_and_below_topics))
    else:
        assert [tuple(one) for one in request.transactions] == [
            (one.transactional_id, one.producer_id, one.producer_epoch, one.verify_only, partitions(one.topics))
            for one in sent.transactions
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_we_write_is_read_by_kio(version: int) -> None:
    errors = [(TopicPartition("a", 0), 0), (TopicPartition("b", 2), 3), (TopicPartition("a", 1), 55)]
    response = AddPartitionsToTxnResponse([TransactionResult("x", errors)], throttle_ms=4)
    answer = kio_read(kio_class(API, version, "response"), write_response(API, version, response))
    if version < MANY_FROM:
        topics = answer.results_by_topic_v3_and_below
    else:
        (result,) = answer.results_by_transaction
        assert (result.transactional_id, answer.error_code.value) == ("x", 0)
        topics = result.topic_results
    found = {
        (topic.name, row.partition_index): row.partition_error_code.value
        for topic in topics
        for row in topic.results_by_partition
    }
    assert found == {("a", 0): 0, ("a", 1): 55, ("b", 2): 3}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failure_as_a_whole_can_be_read_too(version: int) -> None:
    body = error_response(API, version, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert body is not None
    kio_read(kio_class(API, version, "response"), body)
