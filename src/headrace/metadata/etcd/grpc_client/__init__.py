"""A small asyncio gRPC client on h2."""
