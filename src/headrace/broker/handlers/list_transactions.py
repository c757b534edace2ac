"""ListTransactions: every transactional id that this broker looks after, by state, producer, duration or name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse, TransactionState

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, ProducerId, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import NO_TIME, Transaction
from headrace.core.transaction.values import TransactionState as State
from headrace.model.errors import HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

if TYPE_CHECKING:
    from kio.schema.types import TransactionalId

DESCRIBE_TRANSACTIONAL_ID = access_for(ApiKey.LIST_TRANSACTIONS, ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)

_STATES = {state.label: state for state in State}


async def handle(request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse:
    unknown = tuple(name for name in request.state_filters if name not in _STATES)
    try:
        wanted = _filter(request, call.broker.clock.wall_ms())
        found = [
            transaction
            for transaction in call.broker.transactions.all()
            if wanted(transaction) and allows(call, DESCRIBE_TRANSACTIONAL_ID, transaction.transactional_id)
        ]
    except HeadraceError as error:
        return ListTransactionsResponse(
            throttle_time=NO_THROTTLE, error_code=wire_error(error.code), transaction_states=()
        )
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        unknown_state_filters=unknown,
        transaction_states=tuple(map(_row, found)),
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producers = set(request.producer_id_filters)
    matches: Callable[[str], bool] | None = None
    if request.transactional_id_pattern:
        from headrace.core.group.modern.regex import matcher

        matches = matcher(request.transactional_id_pattern)

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not request.state_filters or transaction.state in states)
            and (not producers or transaction.producer_id in producers)
            and (request.duration_filter < 0 or _runs_longer(transaction, now_ms, request.duration_filter))
            and (matches is None or matches(transaction.transactional_id))
        )

    return is_wanted


def _runs_longer(transaction: Transaction, now_ms: int, duration_ms: int) -> bool:
    return transaction.started_ms != NO_TIME and now_ms - transaction.started_ms > duration_ms


def _row(transaction: Transaction) -> TransactionState:
    return TransactionState(
        transactional_id=cast("TransactionalId", transaction.transactional_id),
        producer_id=ProducerId(transaction.producer_id),
        transaction_state=transaction.state.label,
    )
