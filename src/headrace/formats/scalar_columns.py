"""Columns of single values, for readers that return Python values of the column's kind (Avro, Protobuf). For text
formats see `text_columns.py`.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.arrow_columns import NONE, Leaf
from headrace.formats.errors import Misfit, shown
from headrace.formats.timestamps import days, instants

DECIMAL_DIGITS_MAX = 38  # the limit of Spark, Delta and Iceberg
# For arithmetic without rounding: Python's default context has 28 digits. Larger than any number that a column can
# hold; bounds the work on larger ones.
WORK = Context(prec=1000)


def refuse(value: Any) -> Any:
    """Conversion of columns that accept no other Python types: raises Misfit."""
    raise Misfit


def plain(type_: pa.DataType, *types: type, convert: Callable[[Any], Any] = refuse) -> Leaf:
    """Returns a column of values that pyarrow accepts unchanged."""
    return Leaf(type_, frozenset({*types, NONE}), convert, partial(pa.array, type=type_))


def to_float(value: Any) -> float:
    """Converts an integer to a float, as Avro promotes numbers. pyarrow accepts integers only if they are exact."""
    if type(value) is int:
        return float(value)
    raise Misfit


def whole_dates() -> Leaf:
    """Returns a column of dates from days since 1970."""
    return Leaf(pa.date32(), frozenset({int, NONE}), refuse, lambda values: days(pa.array(values, pa.int64())))


def whole_timestamps(type_: pa.DataType, microseconds: int) -> Leaf:
    """Returns a column of timestamps from units of this many microseconds since 1970."""

    def make(values: list[Any]) -> pa.Array:
        numbers = pa.array(values, pa.int64())
        return instants(pc.multiply_checked(numbers, microseconds) if microseconds != 1 else numbers, type_)

    return Leaf(type_, frozenset({int, NONE}), refuse, make)


def nanosecond_timestamps(type_: pa.DataType, *, rounds: bool) -> Leaf:
    """Returns a column of timestamps from nanoseconds since 1970."""

    def convert(value: Any) -> int:
        microseconds, rest = divmod(value, 1000) if type(value) is int else refuse(value)
        if rest and not rounds:
            raise Misfit(f"{value} ns has digits behind the microsecond; allow them with excess_digits: round")
        return int(microseconds)

    return Leaf(type_, frozenset({NONE}), convert, lambda values: instants(pa.array(values, pa.int64()), type_))


def decimals(precision: int, scale: int, to_decimal: Callable[[Any], Decimal], *, rounds: bool) -> Leaf:
    type_ = pa.decimal128(precision, scale)
    return plain(type_, convert=lambda value: fitted(to_decimal(value), precision, scale, rounds=rounds))


def fitted(number: Decimal, precision: int, scale: int, *, rounds: bool) -> Decimal:
    """Returns the number with exactly `scale` decimals. Raises Misfit if it is too large, or if it would be rounded
    without `rounds`.
    """
    if not number.is_finite():
        raise Misfit(f"{number} is no decimal({precision},{scale})")
    try:
        exact = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, WORK)
    except InvalidOperation:
        raise Misfit(f"{shown(number)} does not fit into decimal({precision},{scale})") from None
    if exact != number and not rounds:
        raise Misfit(
            f"{shown(str(number))} has more than {scale} decimals, and the column is decimal({precision},{scale}); "
            "allow it with excess_digits: round"
        )
    if exact and exact.adjusted() + 1 + scale > precision:
        raise Misfit(f"{shown(str(number))} does not fit into decimal({precision},{scale})")
    return exact
