"""values: record values as Arrow columns, for pipelines and archives alike. Python and pyarrow; no Spark, no I/O."""
