"""Dates and timestamps as Arrow columns, from numbers since 1970 and from ISO 8601 text.

Timestamps have microseconds. Years are 1 to 9999, as in SQL: a value outside is nearly always a number in another
unit than the column's.
"""

from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.errors import Misfit

TIMESTAMP = pa.timestamp("us", "UTC")
LOCAL_TIMESTAMP = pa.timestamp("us")  # Spark's timestamp_ntz

_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1

# A zone follows a time. Without the space or T, the day of a date would match.
_ZONE = r"[T ].*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_ZERO_DIGITS, _MORE_DIGITS = r"(\.[0-9]{6})0+", r"(\.[0-9]{6})[0-9]+"

Make = Callable[[list[Any]], pa.Array]


def days(numbers: pa.Array) -> pa.Array:
    """Returns dates from days since 1970."""
    _check(numbers, _FIRST_DAY, _LAST_DAY)
    return numbers.cast(pa.int32()).view(pa.date32())


def instants(microseconds: pa.Array, type_: pa.DataType) -> pa.Array:
    """Returns timestamps from microseconds since 1970."""
    _check(microseconds, _FIRST_US, _LAST_US)
    return microseconds.view(type_)


def _check(numbers: pa.Array, first: int, last: int) -> None:
    edges = pc.min_max(numbers).as_py()
    if edges["min"] is not None and (edges["min"] < first or edges["max"] > last):
        raise Misfit("is outside of the years 1 to 9999")


def dates_of_text(values: list[Any]) -> pa.Array:
    return days(pa.array(values, pa.string()).cast(pa.date32()).view(pa.int32()))


def timestamps_of_text(type_: pa.DataType, *, rounds: bool) -> Make:
    """Returns a parser of ISO 8601. A time without a zone is in UTC. For a timestamp_ntz, which is always in UTC, a
    zone is an error.

    With `rounds`, digits after the microsecond are truncated; otherwise only zeros are accepted.
    """
    digits = _MORE_DIGITS if rounds else _ZERO_DIGITS

    def make(values: list[Any]) -> pa.Array:
        texts = pa.array(values, pa.string())
        try:
            found = texts.cast(type_)
        except pa.ArrowInvalid:
            texts = pc.replace_substring_regex(texts, digits, r"\1")
            if pc.any(pc.match_substring_regex(texts, _MORE_DIGITS)).as_py():
                raise Misfit("has digits behind the microsecond; allow them with excess_digits: round") from None
            found = _parsed(texts, type_)
        return instants(found.view(pa.int64()), type_)

    return make


def _parsed(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Parses texts with and without a zone separately: pyarrow's parser does not accept both in one array."""
    if type_.tz is None:
        return texts.cast(type_)
    has_zone = pc.match_substring_regex(texts, _ZONE)
    nothing = pa.scalar(None, pa.string())
    zoned = pc.if_else(has_zone, texts, nothing).cast(type_)
    local = pc.if_else(has_zone, nothing, texts).cast(LOCAL_TIMESTAMP).cast(type_)
    return pc.coalesce(zoned, local)
