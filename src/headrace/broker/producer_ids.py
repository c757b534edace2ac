"""Producer ids that nobody else has: taken from the cluster's facts a block at a time."""

from asyncio import Lock

from headrace.broker.controller import Controller


class ProducerIds:
    """Hands out the ids of a block, and fetches the next block when it is used up."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._next = self._end = 0
        self._one_at_a_time = Lock()

    async def take(self) -> int:
        async with self._one_at_a_time:
            if self._next == self._end:
                block = await self._controller.allocate_producer_ids()
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
