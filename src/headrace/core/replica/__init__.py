"""core.replica: replication state of a partition: high watermark, ISR, follower truncation. Pure; performs no I/O."""
