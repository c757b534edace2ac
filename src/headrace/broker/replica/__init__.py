"""broker.replica: partitions on this broker: role, high watermark, append, read, flush, delayed operations."""
