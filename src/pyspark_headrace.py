"""Registers `format("headrace")`: Spark looks for top-level modules named `pyspark_*` and their `DefaultSource`."""

from headrace.spark.connector.datasource import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
