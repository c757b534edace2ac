"""client.aio: the asyncio client: requests, producers, consumers."""
