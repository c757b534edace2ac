"""Pipelines as Python: a decorated function from DataFrames to a DataFrame.

from headrace.spark.pipeline.python_file import pipeline, topic

@pipeline(orders=topic("orders", format="json", schema="id bigint, amount double"), sink=topic("totals", key="id"))
def totals(orders):
    return orders.groupBy("id").sum("amount")

What the decorator is given is what a YAML file says, under the same names, and is read by the same code.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.spark.pipeline.problems import PipelineRefused, Problem
from headrace.spark.pipeline.python_lines import given_nodes, lines_of_decorator
from headrace.spark.pipeline.spec import FUNCTION, Pipeline
from headrace.spark.pipeline.yaml_file import SchemaFiles, parse_nodes

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
    retry_topic: str | None = None,
    trigger: str | None = None,
    output_mode: str | None = None,
    stalled_after_triggers: int | None = None,
    spark: Mapping[str, str] | None = None,
    **sources: dict[str, Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function becomes a pipeline; its parameters are named like the sources."""
    given = {
        "dead_letters": dead_letters,
        "retry_topic": retry_topic,
        "trigger": trigger,
        "output_mode": output_mode,
        "stalled_after_triggers": stalled_after_triggers,
        "spark": spark,
        "sink": sink,
        "sources": sources,
    }

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        said = {"pipeline": name or function.__name__, **given}
        setattr(function, _MARK, {key: value for key, value in said.items() if value is not None})
        return function

    return mark


def read_python_pipeline(path: Path) -> Pipeline:
    """The one pipeline of a file."""
    return parse_python_pipeline(path.read_text(encoding="utf-8"), path, SchemaFiles(path.parent))


def parse_python_pipeline(text: str, path: Path, files: SchemaFiles) -> Pipeline:
    """The same from its text; `path` is what the code finds as `__file__`, and what errors name."""
    names: dict[str, Any] = {"__name__": "headrace_pipeline", "__file__": str(path), "__builtins__": __builtins__}
    try:
        exec(compile(text, str(path), "exec"), names)  # noqa: S102 - the user's own program, in the user's process
    except Exception as error:
        line = line_in(error, str(path))
        raise PipelineRefused(str(path), [Problem(line, f"{type(error).__name__}: {error}")]) from error
    marked: list[Any] = [value for value in names.values() if hasattr(value, _MARK)]
    found = {id(one): one for one in marked}  # a second name for the same function is no second pipeline
    if len(found) != 1:
        how_many = "more than one" if found else "no"
        raise PipelineRefused(str(path), [Problem(0, f"{how_many} function is marked with @pipeline")])
    return _parsed(text, path, files, marked[0])


def _parsed(text: str, path: Path, files: SchemaFiles, function: Callable[..., Any]) -> Pipeline:
    lines = lines_of_decorator(text, function.__code__.co_firstlineno)
    given: dict[str, Any] = getattr(function, _MARK)
    mistakes = [Problem(lines.get(FUNCTION, 0), text) for text in _misnamed(function, given["sources"])]
    nodes = given_nodes(given, lines)
    return parse_nodes(nodes, str(path), files=files, function=function, lines=lines, mistakes=mistakes)


def _misnamed(function: Callable[..., Any], sources: Mapping[str, Any]) -> list[str]:
    """Every source is handed to the parameter of its name, and every parameter needs one."""
    try:
        inspect.signature(function).bind(**sources)
    except TypeError as error:
        return [f"{function.__name__} must have a parameter for each source ({', '.join(sources)}): {error}"]
    return []


def line_in(error: BaseException, file: str) -> int:
    """The innermost line of this file on the way to the error; 0 if it was not on the way."""
    line = error.lineno or 0 if isinstance(error, SyntaxError) and error.filename == file else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
