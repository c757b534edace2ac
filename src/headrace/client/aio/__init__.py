"""client.aio: the asyncio client: raw requests, producers and consumers."""
