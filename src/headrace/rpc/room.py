"""How much may wait for the broker."""

import asyncio


class Room:
    """What may wait for the broker at once, over all calls; whoever wants more waits, first come, first served.

    Both limits stay well below what librdkafka takes (`client/publisher.py`): where its queue overflows in the middle
    of a request, later records could overtake earlier ones.
    """

    RECORDS_MAX = 100_000
    BYTES_MAX = 32 * 1024 * 1024

    def __init__(self) -> None:
        self._records = self._bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, records: int, size: int) -> None:
        async with self._turn:
            while self._records and (self._records + records > self.RECORDS_MAX or self._bytes + size > self.BYTES_MAX):
                self._freed.clear()
                await self._freed.wait()
            self._records += records
            self._bytes += size

    def give_back(self, records: int, size: int) -> None:
        self._records -= records
        self._bytes -= size
        self._freed.set()
