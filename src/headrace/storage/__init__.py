"""Partition logs on disk: segments, indexes, producer states, recovery and compaction.

Uses records; independent of requests.
"""
