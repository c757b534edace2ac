"""Pipelines as Python: a decorated function from DataFrames to a DataFrame.

from headrace.spark import pipeline, topic

@pipeline(orders=topic("orders", format="json", schema="id bigint, amount double"), sink=topic("totals", key="id"))
def totals(orders):
    return orders.groupBy("id").sum("amount")
"""

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.spark.pipeline.problems import PipelineRefused, Problem
from headrace.spark.pipeline.spec import Decoding, Format, OutputMode, Pipeline, Sink, SinkKind, Source, Watermark

_MARK = "__headrace_pipeline__"


def topic(name: str, **fields: Any) -> dict[str, Any]:
    """A topic, as a source or as a sink: the keys are those of a pipeline file."""
    return {"topic": name, **fields}


def table(path: str) -> dict[str, Any]:
    """A table that is read whole, to look things up in."""
    return {"table": path}


def pipeline(
    *,
    sink: dict[str, Any],
    name: str | None = None,
    dead_letters: str | None = None,
    trigger: str = "1 second",
    output_mode: str = OutputMode.APPEND,
    spark: dict[str, str] | None = None,
    **sources: dict[str, Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function becomes a pipeline; its parameters are named like the sources."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        made = Pipeline(
            name=name or function.__name__,
            sources=tuple(_source(one, fields) for one, fields in sources.items()),
            sink=_sink(sink),
            function=function,
            dead_letters=dead_letters,
            trigger=trigger,
            output_mode=OutputMode(output_mode),
            spark=dict(spark or {}),
        )
        missing = [one for one in inspect.signature(function).parameters if one not in sources]
        if missing:
            raise PipelineRefused(function.__name__, [Problem(0, f"no source is named {missing[0]}")])
        setattr(function, _MARK, made)
        return function

    return mark


def read_python_pipeline(path: Path) -> Pipeline:
    """The one pipeline of a file."""
    try:
        names = runpy.run_path(str(path), run_name="headrace_pipeline")
    except PipelineRefused:
        raise
    except Exception as error:
        raise PipelineRefused(
            str(path), [Problem(_line_of(error, path), f"{type(error).__name__}: {error}")]
        ) from error
    found: list[Pipeline] = [getattr(value, _MARK) for value in names.values() if hasattr(value, _MARK)]
    if len(found) != 1:
        said = (
            "no function is marked with @pipeline" if not found else "more than one function is marked with @pipeline"
        )
        raise PipelineRefused(str(path), [Problem(0, said)])
    return found[0]


def _line_of(error: Exception, path: Path) -> int:
    trace = error.__traceback__
    line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _source(name: str, fields: dict[str, Any]) -> Source:
    known = dict(fields)
    watermark = known.pop("watermark", None)
    topics = known.pop("topic", ())
    decoding = Decoding(
        format=Format(known.pop("format", Format.RAW)),
        schema=known.pop("schema", None),
        message=known.pop("message", None),
        registry=known.pop("registry", None),
        options=known.pop("decode_options", {}),
    )
    column, _, delay = (watermark or "").partition(" ")
    return Source(
        name=name,
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        pattern=known.pop("pattern", None),
        table=known.pop("table", None),
        decoding=decoding,
        watermark=Watermark(column=column, delay=delay) if watermark else None,
        rejects=known.pop("reject", {}),
        starting=known.pop("starting", "earliest"),
        options=_rest(name, known),
    )


def _sink(fields: dict[str, Any]) -> Sink:
    known = dict(fields)
    kinds = [kind for kind in SinkKind if kind in known]
    if len(kinds) != 1:
        raise PipelineRefused("sink", [Problem(0, f"a sink is exactly one of {', '.join(SinkKind)}")])
    target = known.pop(kinds[0])
    return Sink(
        kind=kinds[0],
        target=str(target),
        format=Format(known.pop("format", Format.JSON)),
        key=known.pop("key", None),
        partition_by=tuple(known.pop("partition_by", ())),
        options=_rest("sink", known),
    )


def _rest(what: str, known: dict[str, Any]) -> dict[str, str]:
    options: dict[str, str] = known.pop("options", {})
    if known:
        raise PipelineRefused(what, [Problem(0, f"there is nothing called {next(iter(known))}")])
    return options
