"""spark.pipeline: one file says what flows from where to where; Spark does it, exactly once."""
