"""CSV values to dictionaries: one line of RFC 4180 in UTF-8, with a field for each column."""

import re
from collections.abc import Sequence
from typing import Any

from headrace.spark.values.misfits import DoesNotDecode
from headrace.spark.values.row_decoder import Read
from headrace.spark.values.rules import Rules

_LINE_END = re.compile(r"\r\n?|\n")


def csv_reader(names: Sequence[str], rules: Rules) -> Read:
    def read(value: bytes) -> dict[str, Any]:
        fields = _fields(_line(value), rules)
        if len(fields) != len(names):
            raise DoesNotDecode(f"not CSV of this schema: {len(fields)} fields for {len(names)} columns")
        return dict(zip(names, fields, strict=True))

    return read


def _line(value: bytes) -> str:
    """Without its end, if it has one."""
    try:
        text = value.decode()
    except UnicodeDecodeError as why:
        raise DoesNotDecode(f"not CSV: not UTF-8: {why.reason} at byte {why.start}") from why
    if not text:
        raise DoesNotDecode("not CSV: the value is empty")
    return text.removesuffix("\n").removesuffix("\r") if text[-1] in "\r\n" else text


def _fields(line: str, rules: Rules) -> list[str | None]:
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


def _quoted(line: str, at: int, rules: Rules) -> tuple[str, int]:
    """A field from behind its opening quote, and where it ends."""
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
