"""spark.pipeline: runs pipelines on Spark, exactly once. A pipeline file has sources, a transform and a sink."""
