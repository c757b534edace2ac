"""Decodes JSON and CSV values to dictionaries.

A CSV value is one line of RFC 4180 in UTF-8 with a field for each column. A JSON value is exactly one object of RFC
8259 in UTF-8, surrounded by white space only.

orjson is fast, but returns floats for all numbers with a decimal point and for integers beyond 64 bits. If a column
needs the digits (a decimal, JSON text), records with such numbers are parsed again with numbers as text.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from headrace.formats.arrow_columns import Struct
from headrace.formats.decoding_rules import JSON, DecodingRules
from headrace.formats.errors import DoesNotDecode
from headrace.formats.row_decoder import Read, RowDecoder
from headrace.formats.text_columns import Number, TextColumns, needs_exact_numbers

_LINE_END = re.compile(r"\r\n?|\n")


def csv_reader(names: Sequence[str], rules: DecodingRules) -> Read:
    def read(value: bytes) -> dict[str, Any]:
        fields = _fields(_line(value), rules)
        if len(fields) != len(names):
            raise DoesNotDecode(f"not CSV of this schema: {len(fields)} fields for {len(names)} columns")
        return dict(zip(names, fields, strict=True))

    return read


def _line(value: bytes) -> str:
    """Returns the line without its line break."""
    try:
        text = value.decode()
    except UnicodeDecodeError as why:
        raise DoesNotDecode(f"not CSV: not UTF-8: {why.reason} at byte {why.start}") from why
    if not text:
        raise DoesNotDecode("not CSV: the value is empty")
    return text.removesuffix("\n").removesuffix("\r") if text[-1] in "\r\n" else text


def _fields(line: str, rules: DecodingRules) -> list[str | None]:
    if rules.quote not in line:
        _check_single(line)
        return [None if field == rules.null_text else field for field in line.split(rules.separator)]
    fields: list[str | None] = []
    at = 0
    while True:
        if line.startswith(rules.quote, at):
            field, at = _quoted(line, at + 1, rules)
            fields.append(field)
            if at < len(line) and line[at] != rules.separator:
                raise DoesNotDecode(f"not CSV: character {at} follows a closing quote and is no separator")
        else:
            end = line.find(rules.separator, at)
            end = len(line) if end < 0 else end
            _check_single(line[at:end])
            fields.append(None if line[at:end] == rules.null_text else line[at:end])
            at = end
        if at >= len(line):
            return fields
        at += 1


def _quoted(line: str, at: int, rules: DecodingRules) -> tuple[str, int]:
    """Parses a quoted field from after its opening quote. Returns it and the position after its closing quote."""
    special = re.compile("|".join({re.escape(rules.quote), re.escape(rules.escape)}))
    parts: list[str] = []
    while (found := special.search(line, at)) is not None:
        parts.append(line[at : found.start()])
        follower = line[found.end() : found.end() + 1]
        if found[0] == rules.escape and follower in (rules.quote, rules.escape) and follower:
            parts.append(follower)
            at = found.end() + 1
        elif found[0] == rules.quote:
            return "".join(parts), found.end()
        else:
            parts.append(found[0])
            at = found.end()
    raise DoesNotDecode("not CSV: a quoted field is not closed")


def _check_single(text: str) -> None:
    if _LINE_END.search(text) is not None:
        raise DoesNotDecode("not CSV: the value has several lines; a record is one row")


_KINDS = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}


def json_reader(fields: Sequence[pa.Field], rules: DecodingRules) -> Read:
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
        exact = _PARSER.decode(value.decode())  # orjson has validated it
    except RecursionError as why:
        raise DoesNotDecode("JSON that is nested too deeply for exact numbers") from why
    return {**document, **{name: exact[name] for name in names if name in exact}}


_EXACT = (str, int, bool, type(None))
_PARSER = json.JSONDecoder(parse_float=Number)


def text_columns(format_: str, fields: Sequence[pa.Field], rules: DecodingRules) -> Struct:
    return TextColumns(rules, has_numbers=format_ == JSON).of(fields)


def text_decoder(format_: str, fields: Sequence[pa.Field], rules: DecodingRules) -> RowDecoder:
    read = json_reader(fields, rules) if format_ == JSON else csv_reader([one.name for one in fields], rules)
    return RowDecoder(read, text_columns(format_, fields, rules), null_values=rules.tombstone_error)
