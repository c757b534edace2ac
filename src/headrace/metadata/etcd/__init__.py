"""Cluster facts in etcd: a small asyncio gRPC client over the few messages that the store port needs.

    store → connection (which member is asked) → channel (one HTTP/2 connection) → call (one gRPC call on it)

Nothing outside imports this package before it is needed: a node alone never loads HTTP/2.
"""
