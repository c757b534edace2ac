"""DescribeTransactions, ListTransactions and WriteTxnMarkers.

- DescribeTransactions returns the coordinator's state of transactional ids.
- ListTransactions returns the transactional ids that this broker coordinates, filtered by state, producer, duration
  or name.
- WriteTxnMarkers writes the outcome of transactions for their coordinator or for an operator.

Operators use WriteTxnMarkers to end a hanging transaction, which no coordinator has and which would block
`read_committed` consumers forever. Markers are written only to partitions that this broker leads; for others it
returns NOT_LEADER_OR_FOLLOWER, as Kafka does.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
)
from kio.schema.describe_transactions.v0.response import (
    TransactionState as DescribeTransactionsTransactionState,
)
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse
from kio.schema.list_transactions.v2.response import TransactionState as ListTransactionsTransactionState
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.coordinator.transaction_marker_manager import Outcome, write_markers_here
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, ProducerId, TopicName, i16, i32, wire_error
from headrace.core.transaction.metadata import EPOCH_BUMP_FROM, NO_TIME, TransactionMetadata
from headrace.core.transaction.metadata import TransactionState as State
from headrace.model.errors import ErrorCode, HeadraceError, TransactionalIdDenied
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID, TopicPartition, by_topic
from headrace.protocol.api import ApiKey
from headrace.protocol.schema import EPOCH
from headrace.security.authorization import Operation, ResourceType, access_for
from headrace.storage.log_types import Producer

if TYPE_CHECKING:
    from kio.schema.types import TransactionalId
    from kio.static.primitive import TZAware, i32Timedelta


DESCRIBE_TRANSACTIONS_DESCRIBE_TRANSACTIONAL_ID = access_for(
    ApiKey.DESCRIBE_TRANSACTIONS, ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE
)
DESCRIBE_TOPIC = access_for(ApiKey.DESCRIBE_TRANSACTIONS, ResourceType.TOPIC, Operation.DESCRIBE)


async def handle_describe_transactions(
    request: DescribeTransactionsRequest, call: RequestContext
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(_describe_transactions_row(name, call) for name in request.transactional_ids),
    )


def _describe_transactions_row(name: "TransactionalId", call: RequestContext) -> DescribeTransactionsTransactionState:
    try:
        if not allows(call, DESCRIBE_TRANSACTIONS_DESCRIBE_TRANSACTIONAL_ID, name):
            raise TransactionalIdDenied(f"no access to the transactional id {name}")
        return _described(name, call.broker.transactions.describe(name), call)
    except HeadraceError as error:
        return _failed(name, error.code)


def _described(
    name: "TransactionalId", transaction: TransactionMetadata, call: RequestContext
) -> DescribeTransactionsTransactionState:
    topics = by_topic(one for one in sorted(transaction.partitions) if allows(call, DESCRIBE_TOPIC, one.topic))
    return DescribeTransactionsTransactionState(
        error_code=NO_ERROR,
        transactional_id=name,
        transaction_state=transaction.state.label,
        transaction_timeout=cast("i32Timedelta", timedelta(milliseconds=transaction.timeout_ms)),
        transaction_start_time=_time(transaction.started_ms),
        producer_id=ProducerId(transaction.producer_id),
        producer_epoch=i16(transaction.epoch),
        topics=tuple(
            TopicData(topic=TopicName(topic), partitions=tuple(map(i32, indexes))) for topic, indexes in topics.items()
        ),
    )


def _time(milliseconds: int) -> "TZAware":
    return cast("TZAware", EPOCH + timedelta(milliseconds=milliseconds))


def _failed(name: "TransactionalId", code: ErrorCode) -> DescribeTransactionsTransactionState:
    return DescribeTransactionsTransactionState(
        error_code=wire_error(code),
        transactional_id=name,
        transaction_state="",
        transaction_timeout=NO_THROTTLE,
        transaction_start_time=_time(0),
        producer_id=ProducerId(NO_PRODUCER_ID),
        producer_epoch=i16(NO_EPOCH),
        topics=(),
    )


LIST_TRANSACTIONS_DESCRIBE_TRANSACTIONAL_ID = access_for(
    ApiKey.LIST_TRANSACTIONS, ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE
)

_STATES = {state.label: state for state in State}


async def handle_list_transactions(request: ListTransactionsRequest, call: RequestContext) -> ListTransactionsResponse:
    unknown = tuple(name for name in request.state_filters if name not in _STATES)
    try:
        wanted = _filter(request, call.broker.clock.wall_ms())
        found = [
            transaction
            for transaction in call.broker.transactions.all()
            if wanted(transaction)
            and allows(call, LIST_TRANSACTIONS_DESCRIBE_TRANSACTIONAL_ID, transaction.transactional_id)
        ]
    except HeadraceError as error:
        return ListTransactionsResponse(
            throttle_time=NO_THROTTLE, error_code=wire_error(error.code), transaction_states=()
        )
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        unknown_state_filters=unknown,
        transaction_states=tuple(map(_list_transactions_row, found)),
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[TransactionMetadata], bool]:
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producers = set(request.producer_id_filters)
    matches: Callable[[str], bool] | None = None
    if request.transactional_id_pattern:
        from headrace.core.regex import matcher

        matches = matcher(request.transactional_id_pattern)

    def is_wanted(transaction: TransactionMetadata) -> bool:
        return (
            (not request.state_filters or transaction.state in states)
            and (not producers or transaction.producer_id in producers)
            and (request.duration_filter < 0 or _runs_longer(transaction, now_ms, request.duration_filter))
            and (matches is None or matches(transaction.transactional_id))
        )

    return is_wanted


def _runs_longer(transaction: TransactionMetadata, now_ms: int, duration_ms: int) -> bool:
    return transaction.started_ms != NO_TIME and now_ms - transaction.started_ms > duration_ms


def _list_transactions_row(transaction: TransactionMetadata) -> ListTransactionsTransactionState:
    return ListTransactionsTransactionState(
        transactional_id=cast("TransactionalId", transaction.transactional_id),
        producer_id=ProducerId(transaction.producer_id),
        transaction_state=transaction.state.label,
    )


CLUSTER_ACTION = access_for(ApiKey.WRITE_TXN_MARKERS, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
ALTER_CLUSTER = access_for(ApiKey.WRITE_TXN_MARKERS, ResourceType.CLUSTER, Operation.ALTER)

Codes = Mapping[tuple[TopicPartition, Outcome], ErrorCode]


async def handle_write_txn_markers(request: WriteTxnMarkersRequest, call: RequestContext) -> WriteTxnMarkersResponse:
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
    """A marker without a producer would end no transaction and stay in the log forever."""
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
