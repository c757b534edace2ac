"""WriteTxnMarkers: the outcome of transactions, brought by their coordinator or by an administrator.

An administrator ends a transaction here that no coordinator knows of: one that would hold back readers for ever. Only
partitions that this broker leads are written; for others it returns NOT_LEADER_OR_FOLLOWER, as Kafka does.
"""

from collections.abc import Mapping

from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from headrace.broker.call import Call
from headrace.broker.coordinators.markers import Outcome, write_markers_here
from headrace.broker.handlers.kafka_types import i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import EPOCH_BUMP_FROM
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for
from headrace.storage.log_values import Producer

CLUSTER_ACTION = access_for(ApiKey.WRITE_TXN_MARKERS, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
ALTER_CLUSTER = access_for(ApiKey.WRITE_TXN_MARKERS, ResourceType.CLUSTER, Operation.ALTER)

Codes = Mapping[tuple[TopicPartition, Outcome], ErrorCode]


async def handle(request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    allowed = allows(call, CLUSTER_ACTION) or allows(call, ALTER_CLUSTER)
    refused = ErrorCode.INVALID_REQUEST if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    wanted = {
        (TopicPartition(topic.name, index), outcome): None
        for marker in request.markers
        if allowed and _names_a_producer(outcome := _outcome(marker))
        for topic in marker.topics
        for index in topic.partition_indexes
    }
    errors = await write_markers_here(call.broker, list(wanted))
    codes = {one: ErrorCode.NONE if error is None else error.code for one, error in zip(wanted, errors, strict=True)}
    return WriteTxnMarkersResponse(markers=tuple(_result(marker, codes, refused) for marker in request.markers))


def _outcome(marker: WritableTxnMarker) -> Outcome:
    return Outcome(
        Producer(marker.producer_id, marker.producer_epoch),
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version >= EPOCH_BUMP_FROM,
    )


def _names_a_producer(outcome: Outcome) -> bool:
    """A marker without a producer would end no transaction, and stay in the log for ever."""
    return outcome.producer.producer_id >= 0 and outcome.producer.epoch >= 0


def _result(marker: WritableTxnMarker, codes: Codes, refused: ErrorCode) -> WritableTxnMarkerResult:
    outcome = _outcome(marker)
    topics = []
    for topic in marker.topics:
        rows = [
            WritableTxnMarkerPartitionResult(
                partition_index=i32(index),
                error_code=wire_error(codes.get((TopicPartition(topic.name, index), outcome), refused)),
            )
            for index in topic.partition_indexes
        ]
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=tuple(rows)))
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(topics))
