"""UnregisterBroker: a broker that is gone for good is struck from the list."""

from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED
from headrace.model.errors import HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.UNREGISTER_BROKER, ResourceType.CLUSTER, Operation.ALTER)


async def handle(request: UnregisterBrokerRequest, call: Call) -> UnregisterBrokerResponse:
    if not allows(call, ALTER_CLUSTER):
        denied = wire_error(CLUSTER_DENIED.code)
        return UnregisterBrokerResponse(
            throttle_time=NO_THROTTLE, error_code=denied, error_message=CLUSTER_DENIED.message
        )
    try:
        await call.broker.controller.unregister(request.broker_id)
    except HeadraceError as error:
        return UnregisterBrokerResponse(
            throttle_time=NO_THROTTLE, error_code=wire_error(error.code), error_message=str(error)
        )
    return UnregisterBrokerResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, error_message=None)
