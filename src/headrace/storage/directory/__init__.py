"""storage.directory: a data directory: its log directories, checkpoints and marker files."""
