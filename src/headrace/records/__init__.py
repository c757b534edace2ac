"""The format of record batches, from the header to the records. Performs no I/O."""
