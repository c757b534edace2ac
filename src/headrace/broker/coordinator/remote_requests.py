"""Requests between a partition leader and a transaction coordinator on another broker.

Encodes the requests and decodes the responses. The callers choose the broker and handle the results.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.transaction.metadata import EPOCH_BUMP_FROM, ProducerIdentity
from headrace.model.errors import (
    CoordinatorFenced,
    ErrorCode,
    HeadraceError,
    InvalidProducerEpoch,
    NotLeader,
    RequestError,
    RequestTimedOut,
)
from headrace.model.ids import TopicPartition, by_topic

if TYPE_CHECKING:
    from headrace.broker.coordinator.transaction_marker_manager import Outcome
    from headrace.broker.network.inter_broker_client import Peers
    from headrace.broker.server import Broker

# A leader responds within `transaction_marker_manager.MARKER_WAIT_S`. One that takes longer is paused or gone, and
# another broker may lead.
MARKER_ANSWER_SECONDS_MAX = 3.0


class RemoteCoordinatorError(RequestError):
    """An error code that another broker returned."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = ErrorCode(code)  # type: ignore[misc]


def producer_state_snapshot(broker: "Broker", owner: ProducerIdentity, place: TopicPartition) -> tuple[int, int] | None:
    """Returns the part of the producer's state in the partition that the end of its transaction would change.

    If it is equal before and after a call to a remote coordinator, the transaction did not end in between.
    """
    partition = broker.partitions.held(place.topic, place.partition)
    entry = partition.log.producers.get(owner.producer_id) if partition is not None else None
    return None if entry is None else (entry.epoch, entry.last_timestamp)


async def add_partitions_at(
    broker: "Broker",
    node_id: int,
    transactional_id: str,
    owner: ProducerIdentity,
    places: Iterable[TopicPartition],
    *,
    verify_only: bool,
) -> dict[TopicPartition, ErrorCode]:
    """Sends AddPartitionsToTxn to the coordinator; with `verify_only`, to check the partitions only."""
    from kio.schema.add_partitions_to_txn.v5 import request as kio_request
    from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse

    messages: Any = kio_request  # untyped: kio's number types would need conversions here
    transaction = messages.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=owner.producer_id,
        producer_epoch=owner.epoch,
        verify_only=verify_only,
        topics=tuple(
            messages.AddPartitionsToTxnTopic(name=name, partitions=tuple(indexes))
            for name, indexes in by_topic(places).items()
        ),
    )
    request = messages.AddPartitionsToTxnRequest(transactions=(transaction,))
    response = await broker.peers.call(node_id, request, AddPartitionsToTxnResponse)
    if response.error_code:
        raise RemoteCoordinatorError(response.error_code, f"broker {node_id} does not coordinate {transactional_id}")
    return {
        TopicPartition(topic.name, row.partition_index): ErrorCode(row.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for row in topic.results_by_partition
    }


async def write_markers_at(
    peers: "Peers", node_id: int, wanted: "Sequence[tuple[TopicPartition, Outcome]]"
) -> list[HeadraceError | None]:
    """Sends markers to a leader in one request. Returns for each None if it is committed, or the error."""
    from kio.schema.write_txn_markers.v2 import request as kio_request
    from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

    by_outcome: dict[Outcome, list[TopicPartition]] = {}
    for place, outcome in wanted:
        by_outcome.setdefault(outcome, []).append(place)
    messages: Any = kio_request
    markers = tuple(
        messages.WritableTxnMarker(
            producer_id=outcome.producer.producer_id,
            producer_epoch=outcome.producer.epoch,
            transaction_result=outcome.commits,
            topics=tuple(
                messages.WritableTxnMarkerTopic(name=name, partition_indexes=tuple(indexes))
                for name, indexes in by_topic(places).items()
            ),
            coordinator_epoch=outcome.coordinator_epoch,
            transaction_version=EPOCH_BUMP_FROM if outcome.uses_tv2 else 0,
        )
        for outcome, places in by_outcome.items()
    )
    request = messages.WriteTxnMarkersRequest(markers=markers)
    response = await peers.call(node_id, request, WriteTxnMarkersResponse, MARKER_ANSWER_SECONDS_MAX)
    codes = {
        (outcome, TopicPartition(topic.name, row.partition_index)): ErrorCode(row.error_code)
        for outcome, result in zip(by_outcome, response.markers, strict=False)
        for topic in result.topics
        for row in topic.partitions
    }
    return [
        _marker_error(codes.get((outcome, place), ErrorCode.UNKNOWN_SERVER_ERROR), node_id, place)
        for place, outcome in wanted
    ]


def _marker_error(code: ErrorCode, node_id: int, place: TopicPartition) -> HeadraceError | None:
    """Returns the error that a leader on this broker would have raised. Other codes are retried as NotLeader."""
    match code:
        case ErrorCode.NONE:
            return None
        case ErrorCode.INVALID_PRODUCER_EPOCH:
            return InvalidProducerEpoch(f"{place} has a newer epoch of the producer")
        case ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            return CoordinatorFenced(f"{place} has a marker of a newer coordinator epoch")
        case ErrorCode.REQUEST_TIMED_OUT:
            return RequestTimedOut(f"broker {node_id} appended a marker to {place}; it is not committed yet")
    return NotLeader(f"broker {node_id} does not take a marker for {place}: {code.name}")
