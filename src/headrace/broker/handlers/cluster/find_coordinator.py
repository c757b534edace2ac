"""FindCoordinator: returns the coordinator of a group or a transactional id."""

from headrace.broker.api.context import RequestContext
from headrace.broker.coordinator.errors import CoordinatorNotAvailable
from headrace.broker.handlers.access import allows, reachable_brokers
from headrace.model.errors import GroupDenied, HeadraceError, RequestError, TransactionalIdDenied
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.find_coordinator import CoordinatorRow, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.security.authorization import Operation, ResourceType, access_for

DESCRIBE_GROUP = access_for(ApiKey.FIND_COORDINATOR, ResourceType.GROUP, Operation.DESCRIBE)
DESCRIBE_TRANSACTIONAL_ID = access_for(ApiKey.FIND_COORDINATOR, ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)

GROUP = 0
TRANSACTION = 1


async def handle_find_coordinator(request: FindCoordinatorRequest, call: RequestContext) -> FindCoordinatorResponse:
    rows = []
    for key in request.keys:
        try:
            rows.append(_row(key, await _leader(request.key_type, key, call), call))
        except HeadraceError as error:
            rows.append(CoordinatorRow(key, error=error.code, message=str(error)))
    return FindCoordinatorResponse(rows)


async def _leader(key_type: int, key: str, call: RequestContext) -> int:
    if key_type == GROUP:
        if not allows(call, DESCRIBE_GROUP, key):
            raise GroupDenied(f"no access to group {key}")
        return await call.broker.groups.leader_of(key)
    if key_type == TRANSACTION:
        if not allows(call, DESCRIBE_TRANSACTIONAL_ID, key):
            raise TransactionalIdDenied(f"no access to the transactional id {key}")
        return await call.broker.transactions.leader_of(key)
    raise RequestError(f"there are no coordinators of type {key_type}")


def _row(key: str, leader: int, call: RequestContext) -> CoordinatorRow:
    for broker, endpoint in reachable_brokers(call):
        if broker.node_id == leader:
            return CoordinatorRow(key, leader, endpoint.host, endpoint.port)
    raise CoordinatorNotAvailable(f"broker {leader} has no listener {call.listener}")
