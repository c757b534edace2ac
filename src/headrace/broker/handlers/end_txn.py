"""EndTxn: commit or abort. Answered when the outcome is certain; the markers may still be on their way."""

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, ProducerId, i16, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import ProducerIdentity
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

WRITE_TRANSACTIONAL_ID = access_for(ApiKey.END_TXN, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)

PRODUCER_FENCED_FROM = 2  # older clients know the fence by another name
EPOCH_BUMP_FROM = 5
BUMPING_VERSION = 2  # of `transaction.version`


async def handle(request: EndTxnRequest, call: Call) -> EndTxnResponse:
    if not allows(call, WRITE_TRANSACTIONAL_ID, request.transactional_id):
        return _failure(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        owner = await call.broker.transactions.end(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=BUMPING_VERSION if call.api_version >= EPOCH_BUMP_FROM else 0,
        )
    except HeadraceError as error:
        fenced_early = error.code is ErrorCode.PRODUCER_FENCED and call.api_version < PRODUCER_FENCED_FROM
        return _failure(ErrorCode.INVALID_PRODUCER_EPOCH if fenced_early else error.code)
    return EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
    )


def _failure(code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(throttle_time=NO_THROTTLE, error_code=wire_error(code))
