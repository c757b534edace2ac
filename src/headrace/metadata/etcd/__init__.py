"""Cluster facts in etcd: a small asyncio gRPC client over the few messages that the store port needs.

Nothing outside imports this package before it is needed: a node alone never loads gRPC.
"""
