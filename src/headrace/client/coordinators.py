"""Which broker looks after a group, and how to put a question to it whatever happens to that broker meanwhile.

Decides when a coordinator is looked for again. What is asked is the business of `group_calls.py`.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.client.cluster import Cluster
from headrace.client.factory import BrokerUnreachable
from headrace.client.refusals import Refused
from headrace.model.errors import ErrorCode

# A group named by a stranger is remembered; more of them than a cluster has busy groups are not worth the memory.
GROUPS_KNOWN_MAX = 10_000
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# What passes while the caller waits. A rebalance does not: it is the members who have to do something about it.
_PASSING = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.BROKER_NOT_AVAILABLE,
}
_PASSING_REPEATABLE = _PASSING | {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION}

Result = TypeVar("Result")


class Coordinators:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[str, int] = {}

    async def ask(
        self, group_id: str, attempt: Callable[[int], Awaitable[Result]], *, repeatable: bool = True
    ) -> Result:
        """`attempt` with the coordinator's broker id, again with another where it has moved.

        Unless it is `repeatable` it is not tried again after a lost response: Unanswered.
        """

        async def once() -> Result:
            broker_id = self._known.get(group_id)
            if broker_id is None:
                broker_id = await self._find(group_id)
            try:
                return await attempt(broker_id)
            except BrokerUnreachable:
                self._known.pop(group_id, None)
                raise
            except Refused as refused:
                if refused.code in _MOVED:
                    self._known.pop(group_id, None)
                raise

        return await self.cluster.patiently(once, _PASSING_REPEATABLE if repeatable else _PASSING)

    async def _find(self, group_id: str) -> int:
        from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
        from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
        from kio.static.primitive import i8

        request = FindCoordinatorRequest(key=group_id, key_type=i8(0))
        answer = await self.cluster.call_anyone(request, FindCoordinatorResponse)
        if answer.error_code:
            raise Refused(int(answer.error_code), answer.error_message or answer.error_code.name)
        if len(self._known) >= GROUPS_KNOWN_MAX:
            self._known.clear()
        self._known[group_id] = answer.node_id
        if answer.node_id not in await self.cluster.brokers():
            await self.cluster.refresh_brokers()
        return answer.node_id
