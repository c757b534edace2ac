"""`headrace pipeline check`: the query is built and analysed, never started; what is wrong is said with its line."""

import re
from typing import TYPE_CHECKING, Any

from headrace.spark.pipeline.plan import Planned, empty_source, plan, records
from headrace.spark.pipeline.problems import PipelineRefused, Problem
from headrace.spark.pipeline.spec import Pipeline, SinkKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINE = re.compile(r"line (\d+),? pos (\d+)")


def check(spark: "SparkSession", pipeline: Pipeline) -> Planned:
    """The planned query; PipelineRefused for whatever Spark finds wrong with it."""
    from pyspark.errors import PySparkException

    try:
        planned = plan(spark, pipeline, lambda source: empty_source(spark, source))
        rows = records(pipeline, planned.output) if pipeline.sink.kind is SinkKind.TOPIC else planned.output
        rows.schema  # noqa: B018  # Spark Connect analyses when it is asked for the schema, and not before
        _check_streaming(spark, pipeline, rows)
    except PySparkException as error:
        raise PipelineRefused(pipeline.file or pipeline.name, [_problem(pipeline, str(error))]) from error
    return planned


def _check_streaming(spark: Any, pipeline: Pipeline, rows: Any) -> None:
    """What Spark looks at when a query is started. Over Spark Connect there is nobody to ask before that."""
    if not hasattr(rows, "_jdf"):
        return
    catalyst, streaming = spark._jvm.org.apache.spark.sql.catalyst, spark._jvm.org.apache.spark.sql.streaming
    mode = getattr(streaming.OutputMode, pipeline.output_mode.capitalize())()
    catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)


def _problem(pipeline: Pipeline, said: str) -> Problem:
    """Spark counts lines from the beginning of the SQL."""
    first = said.split("\n")[0].split(" SQLSTATE:")[0]
    place = _LINE.search(said)
    line = pipeline.sql_line + int(place.group(1)) - 1 if place and pipeline.sql_line else pipeline.sql_line
    return Problem(line, first)
