"""A data directory: partition directories, checkpoints and marker files."""
