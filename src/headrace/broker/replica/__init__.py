"""Partitions on this broker: leader and follower state, high watermark, append, read, flush and delayed operations."""
