"""InitProducerId: returns a unique producer id, or the next epoch of a transactional id.

Without a transactional id, a producer that sends its old id and epoch gets a new id, too: nothing proves that the old
id is its own, and a new id accepts any first sequence.
"""

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows
from headrace.core.transaction.metadata import ProducerIdentity
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.init_producer_id import (
    PRODUCER_FENCED_FROM,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.security.authorization import Operation, ResourceType, access_for

IDEMPOTENT_WRITE = access_for(ApiKey.INIT_PRODUCER_ID, ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE)
WRITE_TOPIC = access_for(ApiKey.INIT_PRODUCER_ID, ResourceType.TOPIC, Operation.WRITE)
WRITE_TRANSACTIONAL_ID = access_for(ApiKey.INIT_PRODUCER_ID, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)


async def handle_init_producer_id(request: InitProducerIdRequest, call: RequestContext) -> InitProducerIdResponse:
    refusal = _refusal(request, call)
    if refusal is not None:
        return InitProducerIdResponse(refusal)
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await call.broker.producer_ids.take(), producer_epoch=0)
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        owner = await call.broker.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected
        )
    except HeadraceError as error:
        return InitProducerIdResponse(_code(error.code, call.api_version))
    return InitProducerIdResponse(producer_id=owner.producer_id, producer_epoch=owner.epoch)


def _code(code: ErrorCode, version: int) -> ErrorCode:
    """Clients before that version expect INVALID_PRODUCER_EPOCH when they are fenced."""
    if code is ErrorCode.PRODUCER_FENCED and version < PRODUCER_FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _refusal(request: InitProducerIdRequest, call: RequestContext) -> ErrorCode | None:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST  # an id without its epoch, or an epoch without an id
    if request.transactional_id is None:
        authorizer = call.broker.authorizer
        if allows(call, IDEMPOTENT_WRITE) or authorizer.allows_some(call.principal, call.client_host, WRITE_TOPIC):
            return None
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not allows(call, WRITE_TRANSACTIONAL_ID, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return None
