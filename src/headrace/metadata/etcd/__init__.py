"""Metadata store in etcd, with a small asyncio gRPC client for the few calls that the store needs.

    store → connection (selects a member) → channel (one HTTP/2 connection) → call (one gRPC call on it)

Other packages import this one lazily: a node without etcd never loads HTTP/2.
"""
