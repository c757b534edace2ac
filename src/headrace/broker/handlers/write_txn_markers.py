"""WriteTxnMarkers: the outcome of transactions, brought by their coordinator or by an administrator.

An administrator ends a transaction here that no coordinator knows of: one that would hold back readers for ever.
"""

from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from headrace.broker.call import Call
from headrace.broker.coordinators.markers import Outcome, write_marker
from headrace.broker.handlers.kafka_types import i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import EPOCH_BUMP_FROM
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for
from headrace.storage.log_values import Producer

CLUSTER_ACTION = access_for(ApiKey.WRITE_TXN_MARKERS, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
ALTER_CLUSTER = access_for(ApiKey.WRITE_TXN_MARKERS, ResourceType.CLUSTER, Operation.ALTER)


async def handle(request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    allowed = allows(call, CLUSTER_ACTION) or allows(call, ALTER_CLUSTER)
    return WriteTxnMarkersResponse(markers=tuple([await _marker(one, allowed, call) for one in request.markers]))


async def _marker(marker: WritableTxnMarker, allowed: bool, call: Call) -> WritableTxnMarkerResult:
    outcome = Outcome(
        Producer(marker.producer_id, marker.producer_epoch),
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version >= EPOCH_BUMP_FROM,
    )
    topics = []
    for topic in marker.topics:
        rows = []
        for index in topic.partition_indexes:
            place = TopicPartition(topic.name, index)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if allowed:
                code = await _write(place, outcome, call) if _is_somebody(outcome) else ErrorCode.INVALID_REQUEST
            rows.append(WritableTxnMarkerPartitionResult(partition_index=i32(index), error_code=wire_error(code)))
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=tuple(rows)))
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(topics))


def _is_somebody(outcome: Outcome) -> bool:
    """A marker without a producer would end nobody's transaction, and stay in the log for ever."""
    return outcome.producer.producer_id >= 0 and outcome.producer.epoch >= 0


async def _write(place: TopicPartition, outcome: Outcome, call: Call) -> ErrorCode:
    try:
        await write_marker(call.broker, place, outcome)
    except HeadraceError as error:
        return error.code
    return ErrorCode.NONE
