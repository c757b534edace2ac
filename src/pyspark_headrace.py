"""Registers `format("headrace")`: Spark looks for top-level modules named `pyspark_*` and their `DefaultSource`."""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
