"""client.reader: bounded and incremental reads of topics as Arrow batches, without Spark."""
