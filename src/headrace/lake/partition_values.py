"""Values of partition columns: grouping rows by them, and their text in Delta's log. Pure; performs no I/O.

A value is a bool, an int, a Decimal, a str or None. Dates are days and timestamps microseconds since 1970, as in
Iceberg.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import groupby

import pyarrow as pa

from headrace.lake.table import PartitionValue, UnfitValue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def runs(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """Yields consecutive rows with equal values, as slices of the batch."""
    if not columns:
        yield (), batch
        return
    values = zip(*(_values(batch.column(name)) for name in columns), strict=True)
    start = 0
    for key, same in groupby(values):
        count = sum(1 for _ in same)
        yield key, batch.slice(start, count)
        start += count


def _values(column: pa.Array) -> list[PartitionValue]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    values: list[PartitionValue] = column.to_pylist()
    return values


def to_text(values: Sequence[PartitionValue]) -> str:
    return json.dumps(values, default=str)


def from_text(text: str, types: Sequence[pa.DataType]) -> list[PartitionValue]:
    """The inverse of `to_text`. JSON represents all kinds of values except decimals."""
    return [
        Decimal(value) if pa.types.is_decimal(kind) and value is not None else value
        for value, kind in zip(json.loads(text), types, strict=True)
    ]


def delta_text(column: str, value: PartitionValue, kind: pa.DataType) -> str | None:
    """Returns the text of a value in Delta's log. Raises UnfitValue if it has none."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case str():
            if not value:
                raise UnfitValue(_no_value(column, "an empty string", "Delta reads it as null"))
            return value
        case int() if pa.types.is_date32(kind):
            return _date(column, value).isoformat()
        case int() if pa.types.is_timestamp(kind):
            moment = _moment(column, value)
            return f"{moment}Z".replace(" ", "T") if kind.tz else moment
    return str(value)


def _date(column: str, days: int) -> date:
    try:
        return _EPOCH.date() + timedelta(days=days)
    except OverflowError:
        raise UnfitValue(_no_value(column, f"the date {days} days after 1970-01-01", _YEARS)) from None


def _moment(column: str, microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise UnfitValue(_no_value(column, f"the time {microseconds} µs after 1970-01-01", _YEARS)) from None
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


_YEARS = "Delta spells the years 1 to 9999"


def _no_value(column: str, value: str, reason: str) -> str:
    return (
        f"{value} cannot be the value of the partition column {column}: {reason}. Replace it in the pipeline's SQL, or "
        "partition by another column"
    )
