"""Builds the DataFrames of a pipeline: the rows for the sink and the dead-letter records.

Starts no queries, so that `headrace pipeline check` and a run build the same ones. The caller passes a function that
opens a source, as a stream or as a batch for a backfill.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.model.errors import InvalidConfig
from headrace.pipeline.dead_letters import DEAD_HEADERS, DEAD_SOURCE
from headrace.pipeline.definition import FUNCTION, SQL, Format, Pipeline, SinkKind, Source
from headrace.pipeline.errors import concerning
from headrace.pipeline.progress import READ
from headrace.spark.pipeline.decode import ERROR, RAW_COLUMNS, analysed, decoded

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OpenSource = Callable[[Source], "DataFrame"]

# Spark's own formats end at the millisecond. Offsets of local mean time have seconds, which no timestamp format of JSON
# has, so times are in UTC whatever the session's time zone is.
JSON_TIMES = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
HEADERS = "array<struct<key:string,value:binary>>"


class PipelineQuery(NamedTuple):
    output: "DataFrame"  # columns of the transform
    dead: "DataFrame | None"  # records: topic, key, value, headers


def plan(spark: "SparkSession", pipeline: Pipeline, open_source: OpenSource) -> PipelineQuery:
    views: dict[str, DataFrame] = {}
    dead: DataFrame | None = None
    for source in pipeline.sources:
        if not source.is_stream:
            with concerning("sources", source.name, "table"):
                views[source.name] = open_source(source)
            continue
        rows = _observed(source, decoded(source, open_source(source)))
        if pipeline.dead_letters is None:
            views[source.name] = _view(source, _stopped_by_errors(pipeline, rows))
        else:
            views[source.name] = _view(source, rows.where(f"{ERROR} is null"))
            letters = dead_letters(pipeline, source, rows.where(f"{ERROR} is not null"))
            dead = letters if dead is None else dead.unionByName(letters)
    return PipelineQuery(transformed(spark, pipeline, views), dead)


def transformed(spark: "SparkSession", pipeline: Pipeline, views: Mapping[str, "DataFrame"]) -> "DataFrame":
    if pipeline.function is not None:
        with concerning(*FUNCTION):
            return _made_by(pipeline.function, views)
    assert pipeline.sql is not None, "a pipeline without a function has SQL"
    for name, view in views.items():
        view.createOrReplaceTempView(name)
    with concerning(*SQL):
        return spark.sql(pipeline.sql)


def _made_by(function: Callable[..., Any], views: Mapping[str, "DataFrame"]) -> "DataFrame":
    output = function(**views)
    if not hasattr(output, "writeStream"):
        raise InvalidConfig(f"{function.__name__} must return a DataFrame, not {type(output).__name__}")
    made: DataFrame = output
    return made


def _observed(source: Source, rows: "DataFrame") -> "DataFrame":
    """Adds the number of records read and the newest timestamp to the query's progress."""
    from pyspark.sql import functions as f

    newest = f.max(f.unix_millis("_timestamp")).alias("newest_ms")
    return rows.observe(f"{READ}{source.name}", f.count(f.lit(1)).alias("count"), newest)


def _view(source: Source, rows: "DataFrame") -> "DataFrame":
    view = rows.drop(ERROR, "_value")
    if source.watermark is not None:
        with concerning("sources", source.name, "watermark"):
            view = analysed(view.withWatermark(source.watermark.column, source.watermark.delay))
    return view


def _stopped_by_errors(pipeline: Pipeline, rows: "DataFrame") -> "DataFrame":
    """Fails the query at the first record that does not decode. Used without a dead-letter topic, so that no record is
    dropped silently.
    """
    from pyspark.sql import functions as f

    where = f.concat_ws(
        " ", f.col("_topic"), f.lit("partition"), f.col("_partition"), f.lit("offset"), f.col("_offset")
    )
    advice = f"; configure a topic for such records: `dead_letters: {pipeline.name}.dead`"
    stop = f.raise_error(f.concat(where, f.lit(": "), f.col(ERROR), f.lit(advice)))
    return rows.where(f.when(f.col(ERROR).isNull(), True).otherwise(stop.cast("boolean")))


def dead_letters(pipeline: Pipeline, source: Source, rows: "DataFrame") -> "DataFrame":
    """Returns records for the dead-letter topic: the original bytes, key and headers, followed by headers with error
    and origin.
    """
    from pyspark.sql import functions as f

    notes: tuple[Column, ...] = (
        f.lit(source.name),
        f.col(ERROR),
        f.lit(pipeline.name),
        f.col("_topic"),
        f.col("_partition").cast("string"),
        f.col("_offset").cast("string"),
        f.unix_millis("_timestamp").cast("string"),
    )
    named = zip((DEAD_SOURCE, *DEAD_HEADERS), notes, strict=True)
    said = f.array(*(f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in named))
    headers = f.concat(f.coalesce(f.col("_headers"), f.array().cast(HEADERS)), said.cast(HEADERS))
    return rows.select(
        f.lit(pipeline.dead_letters).alias("topic"),
        f.col("_key").alias("key"),
        f.col("_value").alias("value"),
        headers.alias("headers"),
    )


def records(pipeline: Pipeline, output: "DataFrame") -> "DataFrame":
    """Returns the transform's rows as records for a topic."""
    from pyspark.sql import functions as f

    sink = pipeline.sink
    assert sink.kind is SinkKind.TOPIC, "only topics hold records"
    if sink.format is Format.JSON:
        value = f.to_json(f.struct(*(f.col(f"`{name}`") for name in output.columns)), JSON_TIMES).cast("binary")
    else:
        value = f.col("value").cast("binary")
    key = f.lit(None).cast("binary")
    if sink.key:
        with concerning("sink", "key"):
            key = f.expr(sink.key).cast("string").cast("binary")
            analysed(output.select(key))
    headers = f.col("_headers") if "_headers" in output.columns else f.array().cast(HEADERS)
    with concerning("sink", "format"):
        return analysed(
            output.select(
                f.lit(sink.target).alias("topic"), key.alias("key"), value.alias("value"), headers.alias("headers")
            )
        )


def open_table(spark: "SparkSession", source: Source, checkpoint: str | None = None) -> "DataFrame":
    """Opens a Delta or Iceberg table, whose newest version each micro-batch looks up; anything else as Parquet."""
    from headrace.lake.table_version import is_lake_table

    assert source.table is not None, "a source is a topic or a table"
    if is_lake_table(source.table):
        from headrace.spark.connector.table_source import open_lake_frame

        return open_lake_frame(spark, source.table, checkpoint)
    return spark.read.parquet(source.table)


def empty_source(spark: "SparkSession", source: Source) -> "DataFrame":
    """Returns a source without rows that needs no broker, for checking a query."""
    if not source.is_stream:
        return open_table(spark, source)
    # A stream, because some operations of tables, such as unbounded aggregates, fail on streams.
    types = ("binary", "binary", "string", "int", "bigint", "timestamp", HEADERS)
    nothing = spark.readStream.format("rate").load().where("false")
    return nothing.selectExpr(*(f"cast(null as {one}) as {name}" for name, one in zip(RAW_COLUMNS, types, strict=True)))
