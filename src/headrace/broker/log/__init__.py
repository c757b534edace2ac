"""broker.log: background work on local logs: retention, compaction, scrubbing, free space."""
