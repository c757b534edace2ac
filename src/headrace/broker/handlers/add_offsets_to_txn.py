"""AddOffsetsToTxn: the transaction is about to commit offsets of a group, so their partition becomes part of it."""

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import ProducerIdentity
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError, TransactionalIdDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

WRITE_TRANSACTIONAL_ID = access_for(ApiKey.ADD_OFFSETS_TO_TXN, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)
READ_GROUP = access_for(ApiKey.ADD_OFFSETS_TO_TXN, ResourceType.GROUP, Operation.READ)

PRODUCER_FENCED_FROM = 2  # older clients know the fence by another name


async def handle(request: AddOffsetsToTxnRequest, call: Call) -> AddOffsetsToTxnResponse:
    try:
        await _add(request, call)
        code = ErrorCode.NONE
    except HeadraceError as error:
        code = error.code
    if code is ErrorCode.PRODUCER_FENCED and call.api_version < PRODUCER_FENCED_FROM:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=wire_error(code))


async def _add(request: AddOffsetsToTxnRequest, call: Call) -> None:
    if not allows(call, WRITE_TRANSACTIONAL_ID, request.transactional_id):
        raise TransactionalIdDenied(f"no access to the transactional id {request.transactional_id}")
    if not allows(call, READ_GROUP, request.group_id):
        raise GroupDenied(f"no access to group {request.group_id}")
    await call.broker.transactions.add_offsets(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        request.group_id,
    )
