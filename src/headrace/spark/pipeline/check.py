"""`headrace pipeline check`: plans and analyzes a query without starting it, and reports errors with their lines.

Also separates errors of the pipeline file from transient ones at run time, so that an invalid pipeline is not
restarted.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.model.errors import InvalidConfig
from headrace.pipeline.definition import FUNCTION, SQL, FieldPath, Pipeline, SinkKind
from headrace.pipeline.errors import InvalidPipelineError, Problem, SchemaMistake, place_of
from headrace.pipeline.python_api import line_in
from headrace.spark.pipeline.query import PipelineQuery, empty_source, plan, records
from headrace.spark.pipeline.sink_columns import check_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark counts lines from the beginning of its input.
_LINE = re.compile(r"line (\d+),? pos (\d+)")
# Prefixes of Spark's error conditions that do not depend on brokers, tables or directories. Others may be transient.
_FOR_GOOD = (
    "AMBIGUOUS_",
    "COLUMN_ALREADY_EXISTS",
    "DATATYPE_MISMATCH",
    "MISSING_AGGREGATION",
    "MISSING_GROUP_BY",
    "PARSE_",
    "STREAMING_OUTPUT_MODE",
    "UNRESOLVED_COLUMN",
    "UNRESOLVED_ROUTINE",
    "UNSUPPORTED_DATATYPE",
    "WRONG_NUM_ARGS",
)


def check(spark: "SparkSession", pipeline: Pipeline) -> PipelineQuery:
    """Returns the planned query. Raises InvalidPipelineError if the pipeline is invalid."""
    from pyspark.errors import PySparkException

    try:
        planned = plan(spark, pipeline, lambda source: empty_source(spark, source))
        rows = records(pipeline, planned.output) if pipeline.sink.kind is SinkKind.TOPIC else planned.output
        rows.schema  # noqa: B018  # Spark Connect analyzes a query only when its schema is requested
        _check_streaming(spark, pipeline, rows)
        check_columns(pipeline, rows.schema)
    except Exception as error:
        is_of_the_file = isinstance(error, (PySparkException, InvalidConfig)) or place_of(error) == FUNCTION
        if not is_of_the_file:
            raise
        raise InvalidPipelineError(pipeline.file or pipeline.name, [_problem(pipeline, error)]) from error
    return planned


@contextmanager
def mistakes_refused(pipeline: Pipeline) -> Iterator[None]:
    """Raises permanent errors of the pipeline file as InvalidPipelineError, because a restart would not help."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_FOR_GOOD):
            raise
        raise InvalidPipelineError(pipeline.file or pipeline.name, [_problem(pipeline, error)]) from error
    except InvalidConfig as error:
        if isinstance(error, InvalidPipelineError) or place_of(error) is None:
            raise
        raise InvalidPipelineError(pipeline.file or pipeline.name, [_problem(pipeline, error)]) from error


def _check_streaming(spark: Any, pipeline: Pipeline, rows: Any) -> None:
    """Runs the check that Spark makes when a query is started. Not available over Spark Connect."""
    if not hasattr(rows, "_jdf"):
        return
    catalyst, streaming = spark._jvm.org.apache.spark.sql.catalyst, spark._jvm.org.apache.spark.sql.streaming
    mode = getattr(streaming.OutputMode, pipeline.output_mode.capitalize())()
    catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)


def _problem(pipeline: Pipeline, error: Exception) -> Problem:
    place = place_of(error) or (FUNCTION if pipeline.function is not None else SQL)
    text = _first_line(error)
    if place == FUNCTION:
        return Problem(line_in(error, pipeline.file) or pipeline.line_at(FUNCTION), text)
    within = _line_within(error)
    file = _schema_file(pipeline, place)
    if file is not None:
        return Problem(
            pipeline.line_at((*place[:-1], "schema_file")), f"{file}{f':{within}' if within else ''}: {text}"
        )
    line = pipeline.line_at(place)
    return Problem(line + max(within - 1, 0) if place in pipeline.lines else line, text)


def _first_line(error: Exception) -> str:
    from pyspark.errors import PySparkException

    said = next((line for line in str(error).splitlines() if line.strip()), "").split(" SQLSTATE:")[0]
    is_said_well = isinstance(error, (PySparkException, InvalidConfig))
    return said if is_said_well else f"{type(error).__name__}: {said}"


def _line_within(error: Exception) -> int:
    """Returns the line of an error within its text, from 1; 0 if unknown."""
    if isinstance(error, SchemaMistake):
        return error.line
    found = _LINE.search(str(error))
    return int(found.group(1)) if found else 0


def _schema_file(pipeline: Pipeline, place: FieldPath) -> str | None:
    """Returns the file of the schema at this path; None if it is in the pipeline file itself."""
    if place[-1] != "schema":
        return None
    return next((one.decoding.schema_file for one in pipeline.sources if one.name == place[1]), None)
