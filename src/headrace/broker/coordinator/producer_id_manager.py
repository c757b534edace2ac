"""Allocates unique producer ids, in blocks reserved in the cluster metadata."""

from asyncio import Lock

from headrace.broker.controller.controller import Controller


class ProducerIdManager:
    """Returns the ids of a block, and reserves the next block when it is used up."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._next = self._end = 0
        self._one_at_a_time = Lock()

    async def take(self) -> int:
        async with self._one_at_a_time:
            while self._next == self._end or self._next < self._controller.image.producer_id_floor:
                # After a restore of the metadata, logs already contain the remaining ids of a block below the floor.
                block = await self._controller.allocate_producer_ids()
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
