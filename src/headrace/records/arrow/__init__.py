"""records.arrow: record batches from and to Arrow columns."""
