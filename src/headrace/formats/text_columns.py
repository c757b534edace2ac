"""Columns of JSON and CSV values. JSON has numbers, CSV has only text; the rules for text are the same for both."""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.arrow_columns import NONE, Column, Field, Leaf, List, Map, Struct
from headrace.formats.decoding_rules import DecodingRules
from headrace.formats.errors import Misfit, shown
from headrace.formats.scalar_columns import DECIMAL_DIGITS_MAX, WORK, decimals, plain, refuse
from headrace.formats.timestamps import dates_of_text, instants, timestamps_of_text
from headrace.model.errors import InvalidConfig

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_TRUTH = {"true": True, "false": False}
# No column can hold longer ones, and the time of int() and Decimal() grows faster than the length of the text.
NUMBER_CHARACTERS_MAX = 400
_EXPONENT_MAX = 100  # of a timestamp; larger exponents are out of range or zero in any unit


class TextColumns:
    """Creates the columns of a schema. `has_numbers`: the format has numbers and booleans beside text (JSON)."""

    def __init__(self, rules: DecodingRules, *, has_numbers: bool) -> None:
        self._rules, self._has_numbers = rules, has_numbers
        self._text_numbers = rules.quoted_numbers or not has_numbers

    def of(self, fields: Iterable[pa.Field]) -> Struct:
        fields = list(fields)
        if not fields:
            raise InvalidConfig("a schema without columns")
        return Struct([Field(one.name, self._column(one.type), required=not one.nullable) for one in fields])

    def _column(self, type_: pa.DataType) -> Column:
        is_ = pa.types
        if is_json_text(type_):
            return self._strings(json_text)
        if is_.is_nested(type_):
            return self._nested(type_)
        if is_.is_string(type_):
            return self._strings(json_text if self._rules.json_in_strings else _no_text)
        if is_.is_boolean(type_):
            return plain(type_, bool, convert=refuse if self._has_numbers else _truth)
        if is_.is_integer(type_):
            return plain(type_, int, convert=self._or_text(_whole_number))
        if is_.is_floating(type_):
            return _floats(type_, self._or_text(_real_number))
        if is_.is_decimal(type_):
            return self._decimals(type_)
        if is_.is_date32(type_):
            return Leaf(type_, frozenset({str, NONE}), refuse, dates_of_text)
        if is_.is_timestamp(type_):
            return self._timestamps(type_)
        if is_.is_binary(type_):
            return plain(type_, convert=_from_base64)
        raise InvalidConfig(f"a column of type {type_} cannot be decoded from text; decode a string and cast it")

    def _nested(self, type_: pa.DataType) -> Column:
        if not self._has_numbers:
            raise InvalidConfig(f"CSV has no values for a column of type {type_}")
        if pa.types.is_struct(type_):
            return self.of(type_)
        if pa.types.is_map(type_):
            if not pa.types.is_string(type_.key_type):
                raise InvalidConfig(f"the keys of a JSON object are strings, and {type_} has others")
            return Map(pa.string(), self._column(type_.item_type))
        if pa.types.is_list(type_):
            return List(self._column(type_.value_type))
        raise InvalidConfig(f"JSON has no values for a column of type {type_}")

    @staticmethod
    def _strings(convert: Callable[[Any], Any]) -> Leaf:
        return plain(pa.string(), str, convert=convert)

    def _or_text(self, of_text: Callable[[str], Any]) -> Callable[[Any], Any]:
        def convert(value: Any) -> Any:
            if type(value) is str and self._text_numbers:
                return of_text(value)
            if type(value) in (int, Number) and of_text is _real_number:
                return float(value)
            return refuse(value)

        return convert

    def _decimals(self, type_: pa.DataType) -> Leaf:
        if type_.precision > DECIMAL_DIGITS_MAX:
            raise InvalidConfig(f"{type_} has more than {DECIMAL_DIGITS_MAX} digits")
        return decimals(type_.precision, type_.scale, _exact_number, rounds=self._rules.rounds)

    def _timestamps(self, type_: pa.DataType) -> Leaf:
        of_text = timestamps_of_text(type_, rounds=self._rules.rounds)
        unit = self._rules.timestamp_unit_us
        if unit is None:
            return Leaf(type_, frozenset({str, NONE}), _no_unit, of_text)

        def microseconds(value: Any) -> Any:
            if type(value) is str and not _NUMBER.fullmatch(value):
                return value
            return _microseconds(_exact_number(value), unit, rounds=self._rules.rounds)

        def make(values: list[Any]) -> pa.Array:
            numbers = pa.array([None if type(value) is str else value for value in values], pa.int64())
            texts = of_text([value if type(value) is str else None for value in values])
            return pc.coalesce(texts, instants(numbers, type_))

        return Leaf(type_, frozenset({NONE}), microseconds, make)


JSON_TEXT = pa.json_(pa.string())


def is_json_text(type_: pa.DataType) -> bool:
    """Whether a column takes any JSON value as its text."""
    return bool(type_ == JSON_TEXT)


def needs_exact_numbers(field: pa.Field, rules: DecodingRules) -> bool:
    """Whether the column needs the exact digits of a number, which the parser's floats do not have."""
    type_ = field.type
    if pa.types.is_decimal(type_) or is_json_text(type_):
        return True
    if pa.types.is_string(type_):
        return rules.json_in_strings
    if pa.types.is_timestamp(type_):
        return rules.timestamp_unit_us is not None
    if pa.types.is_map(type_):
        return needs_exact_numbers(type_.item_field, rules)
    if pa.types.is_list(type_):
        return needs_exact_numbers(type_.value_field, rules)
    return pa.types.is_struct(type_) and any(needs_exact_numbers(one, rules) for one in type_)


class Number(str):
    """The text of a JSON number with a decimal point or an exponent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)  # without quotes in error messages


def json_text(value: Any) -> str:
    """Returns a JSON value as compact text, with its numbers as they were sent."""
    try:
        return _json_text(value)
    except RecursionError:
        raise Misfit("is nested too deeply for a column of JSON text") from None


def _json_text(value: Any) -> str:
    if type(value) in (int, Number):
        return str(value)
    if type(value) is dict:
        return "{" + ",".join(f"{_quoted(name)}:{_inner(one)}" for name, one in value.items()) + "}"
    if type(value) is list:
        return "[" + ",".join(map(_inner, value)) + "]"
    return orjson.dumps(value).decode()


def _inner(value: Any) -> str:
    return _quoted(value) if type(value) is str else _json_text(value)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _no_text(value: Any) -> Any:
    raise Misfit(f"{shown(value)} is not a string; allow it with strings: json")


def _no_unit(value: Any) -> Any:
    if type(value) in (int, float, Number):
        raise Misfit(f"{shown(value)} is a number, not ISO 8601 text; set its unit, as in timestamps: milliseconds")
    return refuse(value)


def _floats(type_: pa.DataType, convert: Callable[[Any], Any]) -> Leaf:
    """Returns a column of floats. Infinity from a number out of range is an error; written out it is a valid value."""

    def make(values: list[Any]) -> pa.Array:
        found = pa.array(values, type_)
        if pc.any(pc.is_inf(found)).as_py() and any(
            is_infinite and abs(value) != float("inf")
            for value, is_infinite in zip(values, pc.is_inf(found).to_pylist(), strict=True)
        ):
            raise ValueError("out of range")
        return found

    return Leaf(type_, frozenset({float, NONE}), convert, make)


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if len(text) > NUMBER_CHARACTERS_MAX or not pattern.fullmatch(text):
        raise Misfit(f"{shown(text)} is no number of the column's type")
    return text


def _whole_number(text: str) -> int:
    return int(_checked(_WHOLE, text))


def _real_number(text: str) -> float:
    if text in _NOT_FINITE:
        return float(text)
    number = float(_checked(_NUMBER, text))
    if abs(number) == float("inf"):
        raise Misfit(f"{shown(text)} is out of range")
    return number


def _exact_number(value: Any) -> Decimal:
    """Returns the value of a decimal column, from a number or from a string, as decimals are often sent."""
    if type(value) is int:
        return Decimal(value)
    if type(value) in (str, Number):
        return Decimal(_checked(_NUMBER, value))
    return Decimal(refuse(value))


def _microseconds(number: Decimal, unit: int, *, rounds: bool) -> int:
    """Converts to microseconds. Excess digits are truncated toward the past if `rounds`, and otherwise rejected."""
    if number and abs(number.adjusted()) > _EXPONENT_MAX:
        raise Misfit(f"{shown(str(number))} is out of range")
    exact = WORK.multiply(number, Decimal(unit))
    whole = exact.to_integral_value(ROUND_FLOOR)
    if whole != exact and not rounds:
        raise Misfit(f"{shown(str(number))} has digits behind the microsecond; allow them with excess_digits: round")
    return int(whole)


def _truth(value: Any) -> bool:
    found = _TRUTH.get(value.lower()) if type(value) is str else None
    return refuse(value) if found is None else found


def _from_base64(value: Any) -> bytes:
    if type(value) is not str:
        return bytes(refuse(value))
    try:
        return b64decode(value.encode("ascii"), validate=True)
    except (NotBase64, UnicodeEncodeError, ValueError):
        raise Misfit(f"{shown(value)} is not base64") from None
