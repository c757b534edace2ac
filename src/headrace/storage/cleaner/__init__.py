"""storage.cleaner: compaction of one log."""
