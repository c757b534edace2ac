"""Columns of single values, for readers that return Python values of the column's own kind (Avro, Protobuf).

Text formats have more to say about what a value may be: see `text_columns.py`.
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

DECIMAL_DIGITS_MAX = 38  # what Spark, Delta and Iceberg can hold
# For arithmetic that must not round: Python's own context has 28 digits. More than a number has that fits a column; it
# bounds the work on numbers that do not.
WORK = Context(prec=1000)


def refuse(value: Any) -> Any:
    """For columns that take no other Python types."""
    raise Misfit


def plain(type_: pa.DataType, *types: type, convert: Callable[[Any], Any] = refuse) -> Leaf:
    """Of values that pyarrow takes as they are."""
    return Leaf(type_, frozenset({*types, NONE}), convert, partial(pa.array, type=type_))


def to_float(value: Any) -> float:
    """Of a whole number, which pyarrow takes only if it is exact. Avro promotes such numbers."""
    if type(value) is int:
        return float(value)
    raise Misfit


def whole_dates() -> Leaf:
    """Of days since 1970."""
    return Leaf(pa.date32(), frozenset({int, NONE}), refuse, lambda values: days(pa.array(values, pa.int64())))


def whole_timestamps(type_: pa.DataType, microseconds: int) -> Leaf:
    """Of numbers since 1970, of so many microseconds each."""

    def make(values: list[Any]) -> pa.Array:
        numbers = pa.array(values, pa.int64())
        return instants(pc.multiply_checked(numbers, microseconds) if microseconds != 1 else numbers, type_)

    return Leaf(type_, frozenset({int, NONE}), refuse, make)


def nanosecond_timestamps(type_: pa.DataType, *, rounds: bool) -> Leaf:
    """Of nanoseconds since 1970."""

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
    """The number with exactly so many decimals; Misfit if it changes, unless it may be rounded, or is too large."""
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
