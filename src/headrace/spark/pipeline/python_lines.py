"""Where in a Python file a pipeline's decorator says what: its values as YAML's nodes, with their lines."""

import ast
from collections.abc import Mapping
from typing import Any

import yaml

from headrace.spark.pipeline.spec import FUNCTION, Place, line_at

# Parameters of the decorator that are no sources, and what a pipeline file calls them.
_OWN_NAMES = {
    name: name
    for name in ("sink", "dead_letters", "retry_topic", "trigger", "output_mode", "stalled_after_triggers", "spark")
} | {"name": "pipeline"}


def lines_of_decorator(text: str, first_line: int) -> dict[Place, int]:
    """Of the function whose first decorator stands there. The place of what is not written out is that around it."""
    lines: dict[Place, int] = {(): first_line}
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        if function.decorator_list[0].lineno == first_line:
            lines[FUNCTION] = function.lineno
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call):
                    _add_keywords(decorator, lines)
    return lines


def _add_keywords(decorator: ast.Call, lines: dict[Place, int]) -> None:
    for keyword in decorator.keywords:
        if keyword.arg is not None:
            own = _OWN_NAMES.get(keyword.arg)
            _add((own,) if own is not None else ("sources", keyword.arg), keyword.value, lines)


def _add(place: Place, value: ast.expr, lines: dict[Place, int]) -> None:
    lines[place] = value.lineno
    if isinstance(value, ast.Call):  # topic("orders", format=…)
        for keyword in value.keywords:
            if keyword.arg is not None:
                _add((*place, keyword.arg), keyword.value, lines)
    elif isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                _add((*place, str(key.value)), one, lines)


def given_nodes(value: Any, lines: Mapping[Place, int], place: Place = ()) -> yaml.Node:
    """As if YAML had said it."""
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
