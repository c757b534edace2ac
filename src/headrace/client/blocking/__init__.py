"""A Kafka client that waits: for programs that do one thing after the other, as a Spark task and its driver do."""
