"""records: the bytes of a record batch, from its header to its records. Knows model; does no I/O."""
