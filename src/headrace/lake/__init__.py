"""lake: Delta Lake and Iceberg tables, written exactly once, from Spark without jars or without Spark."""
