"""Pipelines in Python files: a decorated function from DataFrames to a DataFrame.

    from headrace.pipeline.python_api import pipeline, topic

    @pipeline(orders=topic("orders", format="json", schema="id bigint, amount double"), sink=topic("totals", key="id"))
    def totals(orders):
        return orders.groupBy("id").sum("amount")

The decorator's arguments are the keys of a YAML file. They are converted to YAML nodes with their lines in the Python
file and parsed by the same code.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.pipeline.definition import FUNCTION, FieldPath, Pipeline, line_at
from headrace.pipeline.errors import InvalidPipelineError, Problem
from headrace.pipeline.parser import SchemaFiles, parse_nodes

# Parameters of the decorator that are not sources → their keys in a pipeline file.
_OWN_NAMES = {
    name: name
    for name in ("sink", "dead_letters", "retry_topic", "trigger", "output_mode", "stalled_after_triggers", "spark")
} | {"name": "pipeline"}


def lines_of_decorator(text: str, first_line: int) -> dict[FieldPath, int]:
    """Returns the lines of the arguments of the function whose first decorator is at `first_line`. An argument that is
    not a literal has the line of the enclosing expression.
    """
    lines: dict[FieldPath, int] = {(): first_line}
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        if function.decorator_list[0].lineno == first_line:
            lines[FUNCTION] = function.lineno
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call):
                    _add_keywords(decorator, lines)
    return lines


def _add_keywords(decorator: ast.Call, lines: dict[FieldPath, int]) -> None:
    for keyword in decorator.keywords:
        if keyword.arg is not None:
            own = _OWN_NAMES.get(keyword.arg)
            _add((own,) if own is not None else ("sources", keyword.arg), keyword.value, lines)


def _add(place: FieldPath, value: ast.expr, lines: dict[FieldPath, int]) -> None:
    lines[place] = value.lineno
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg is not None:
                _add((*place, keyword.arg), keyword.value, lines)
    elif isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                _add((*place, str(key.value)), one, lines)


def given_nodes(value: Any, lines: Mapping[FieldPath, int], place: FieldPath = ()) -> yaml.Node:
    """Converts a Python value to the YAML node of the same value."""
    mark = yaml.Mark("", 0, line_at(lines, place) - 1, 0, None, 0)
    if isinstance(value, Mapping):
        pairs = [
            (given_nodes(str(key), lines, (*place, str(key))), given_nodes(one, lines, (*place, str(key))))
            for key, one in value.items()
        ]
        return yaml.MappingNode("tag:yaml.org,2002:map", pairs, mark, mark)
    if isinstance(value, (list, tuple)):
        items = [given_nodes(one, lines, place) for one in value]
        return yaml.SequenceNode("tag:yaml.org,2002:seq", items, mark, mark)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, mark, mark)


_MARK = "__headrace_pipeline__"


def topic(name: str, **fields: Any) -> dict[str, Any]:
    """A topic as source or sink. The keyword arguments are the keys of a pipeline file."""
    return {"topic": name, **fields}


def table(path: str) -> dict[str, Any]:
    """A table for lookups, read whole."""
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
    """Decorator that makes a pipeline of a function whose parameters are named like the sources."""
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
    """Reads the only pipeline of a Python file."""
    return parse_python_pipeline(path.read_text(encoding="utf-8"), path, SchemaFiles(path.parent))


def parse_python_pipeline(text: str, path: Path, files: SchemaFiles) -> Pipeline:
    """Executes the text of a Python file and returns its pipeline. `path` is the code's `__file__`, and is used in
    errors.
    """
    names: dict[str, Any] = {"__name__": "headrace_pipeline", "__file__": str(path), "__builtins__": __builtins__}
    try:
        exec(compile(text, str(path), "exec"), names)  # noqa: S102 - the user's own program, in the user's process
    except Exception as error:
        line = line_in(error, str(path))
        raise InvalidPipelineError(str(path), [Problem(line, f"{type(error).__name__}: {error}")]) from error
    marked: list[Any] = [value for value in names.values() if hasattr(value, _MARK)]
    found = {id(one): one for one in marked}  # a second name of the same function is not a second pipeline
    if len(found) != 1:
        how_many = "more than one" if found else "no"
        raise InvalidPipelineError(str(path), [Problem(0, f"{how_many} function is marked with @pipeline")])
    return _parsed(text, path, files, marked[0])


def _parsed(text: str, path: Path, files: SchemaFiles, function: Callable[..., Any]) -> Pipeline:
    lines = lines_of_decorator(text, function.__code__.co_firstlineno)
    given: dict[str, Any] = getattr(function, _MARK)
    mistakes = [Problem(lines.get(FUNCTION, 0), text) for text in _misnamed(function, given["sources"])]
    nodes = given_nodes(given, lines)
    return parse_nodes(nodes, str(path), files=files, function=function, lines=lines, mistakes=mistakes)


def _misnamed(function: Callable[..., Any], sources: Mapping[str, Any]) -> list[str]:
    """Returns problems of the function's parameters: each source needs a parameter of its name, and vice versa."""
    try:
        inspect.signature(function).bind(**sources)
    except TypeError as error:
        return [f"{function.__name__} must have a parameter for each source ({', '.join(sources)}): {error}"]
    return []


def line_in(error: BaseException, file: str) -> int:
    """Returns the innermost line of this file in the traceback; 0 if there is none."""
    line = error.lineno or 0 if isinstance(error, SyntaxError) and error.filename == file else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
