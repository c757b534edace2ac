"""spark.connector: `format("headrace")`, source and sink, and `format("headrace-table")`."""
