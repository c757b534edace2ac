"""spark.archive: a lake table of a topic, kept exactly once, and the two read as one. The archiver needs no Spark."""
