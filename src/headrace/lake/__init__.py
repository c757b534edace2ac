"""spark.lake: tables of Delta Lake and Iceberg, written exactly once from Spark without a jar."""
