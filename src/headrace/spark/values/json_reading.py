"""JSON values to dictionaries: exactly one object of RFC 8259 in UTF-8, nothing before or behind it but white space.

orjson is fast, but makes floats of all numbers with a point and of whole ones beyond 64 bits. Where a column needs the
digits (a decimal, JSON text), the records that have such numbers there are parsed again, with the numbers as text.
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from headrace.spark.values.misfits import DoesNotDecode
from headrace.spark.values.row_decoder import Read
from headrace.spark.values.rules import Rules
from headrace.spark.values.text_leaves import Number, needs_exact_numbers

_KINDS = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}


def json_reader(fields: Sequence[pa.Field], rules: Rules) -> Read:
    exact = [one.name for one in fields if needs_exact_numbers(one, rules)]
    if not exact:
        return _object
    return lambda value: _with_exact_numbers(value, exact)


def _object(value: bytes) -> Any:
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as why:
        raise DoesNotDecode(f"not JSON: {why}") from why
    if type(document) is not dict:
        raise DoesNotDecode(f"a JSON {_KINDS.get(type(document), 'null')}, not an object")
    return document


def _with_exact_numbers(value: bytes, names: Sequence[str]) -> Any:
    document = _object(value)
    if all(type(document.get(name)) in _EXACT for name in names):
        return document
    try:
        exact = _PARSER.decode(value.decode())  # orjson has seen that it is well-formed
    except RecursionError as why:
        raise DoesNotDecode("JSON that is nested too deeply for exact numbers") from why
    return {**document, **{name: exact[name] for name in names if name in exact}}


_EXACT = (str, int, bool, type(None))
_PARSER = json.JSONDecoder(parse_float=Number)
