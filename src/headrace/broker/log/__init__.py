"""Background work on local logs: retention, compaction, scrubbing, free disk space."""
