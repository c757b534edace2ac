"""DescribeTransactions: what the coordinator knows of transactional ids."""

from datetime import timedelta
from typing import TYPE_CHECKING, cast

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, ProducerId, TopicName, i16, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import Transaction
from headrace.model.errors import ErrorCode, HeadraceError, TransactionalIdDenied
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID, by_topic
from headrace.protocol.api import ApiKey
from headrace.protocol.schema import EPOCH
from headrace.security.access import Operation, ResourceType, access_for

if TYPE_CHECKING:
    from kio.schema.types import TransactionalId
    from kio.static.primitive import TZAware, i32Timedelta

DESCRIBE_TRANSACTIONAL_ID = access_for(ApiKey.DESCRIBE_TRANSACTIONS, ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)
DESCRIBE_TOPIC = access_for(ApiKey.DESCRIBE_TRANSACTIONS, ResourceType.TOPIC, Operation.DESCRIBE)


async def handle(request: DescribeTransactionsRequest, call: Call) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(_row(name, call) for name in request.transactional_ids),
    )


def _row(name: "TransactionalId", call: Call) -> TransactionState:
    try:
        if not allows(call, DESCRIBE_TRANSACTIONAL_ID, name):
            raise TransactionalIdDenied(f"no access to the transactional id {name}")
        return _described(name, call.broker.transactions.describe(name), call)
    except HeadraceError as error:
        return _failed(name, error.code)


def _described(name: "TransactionalId", transaction: Transaction, call: Call) -> TransactionState:
    topics = by_topic(one for one in sorted(transaction.partitions) if allows(call, DESCRIBE_TOPIC, one.topic))
    return TransactionState(
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


def _failed(name: "TransactionalId", code: ErrorCode) -> TransactionState:
    return TransactionState(
        error_code=wire_error(code),
        transactional_id=name,
        transaction_state="",
        transaction_timeout=NO_THROTTLE,
        transaction_start_time=_time(0),
        producer_id=ProducerId(NO_PRODUCER_ID),
        producer_epoch=i16(NO_EPOCH),
        topics=(),
    )
