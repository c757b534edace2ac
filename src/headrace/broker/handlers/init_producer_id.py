"""InitProducerId for idempotent producers: an id that nobody else has.

Transactions are not served yet. A transactional id is refused as not authorized: librdkafka and the Java client
take that as final, whereas the coordinator errors, closer to the truth, make them ask again for ever.
"""

from asyncio import Lock
from weakref import WeakKeyDictionary

from headrace.broker.call import Call
from headrace.broker.controller import Controller
from headrace.broker.handlers.shared import allows
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID
from headrace.protocol.api import ApiKey
from headrace.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.access import Operation, ResourceType, access_for

IDEMPOTENT_WRITE = access_for(ApiKey.INIT_PRODUCER_ID, ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE)
WRITE_TOPIC = access_for(ApiKey.INIT_PRODUCER_ID, ResourceType.TOPIC, Operation.WRITE)


class ProducerIds:
    """Hands out the ids of a block, and fetches the next block when it is used up."""

    def __init__(self) -> None:
        self._next = self._end = 0
        self._one_at_a_time = Lock()

    async def take(self, controller: Controller) -> int:
        async with self._one_at_a_time:
            if self._next == self._end:
                block = await controller.allocate_producer_ids()
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1


_PRODUCER_IDS: WeakKeyDictionary[Controller, ProducerIds] = WeakKeyDictionary()


async def handle(request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    refusal = _refusal(request, call)
    if refusal is not None:
        return InitProducerIdResponse(refusal)
    # A producer that names its old id and epoch gets a new id too: without a transactional id nothing proves that
    # the old one is its own, and to a new id every sequence is fresh.
    controller = call.broker.controller
    ids = _PRODUCER_IDS.setdefault(controller, ProducerIds())
    return InitProducerIdResponse(producer_id=await ids.take(controller), producer_epoch=0)


def _refusal(request: InitProducerIdRequest, call: Call) -> ErrorCode | None:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST  # an id without its epoch, or the other way round
    if request.transactional_id is None:
        authorizer = call.broker.authorizer
        if allows(call, IDEMPOTENT_WRITE) or authorizer.allows_some(call.principal, call.client_host, WRITE_TOPIC):
            return None
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
