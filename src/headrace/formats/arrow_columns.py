"""Builds Arrow columns from decoded values, one batch at a time: nested columns from their children, leaves by pyarrow.

For a batch of values that match, only the set of their Python types is checked. A value that does not match becomes
null and an error of its row. Other rows of the batch are not affected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol

import pyarrow as pa

from headrace.formats.errors import Misfit, Misfits, shown

NONE: type = type(None)
# Exceptions of pyarrow for a value that does not match the type of an array.
NOT_BUILT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Column(Protocol):
    @property
    def type(self) -> pa.DataType: ...

    def build(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> pa.Array:
        """Returns an array with one element per value. `rows` has the row of each value, `path` the column's name."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column without children."""

    type: pa.DataType
    plain: frozenset[type]  # Python types that `make` accepts; other values are converted one by one
    convert: Callable[[Any], Any]  # raises Misfit
    # Raises one of NOT_BUILT for a value that does not match, or a Misfit whose text continues the value: "is too
    # large".
    make: Callable[[list[Any]], pa.Array]

    def build(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> pa.Array:
        if not self.plain.issuperset(map(type, values)):
            values = self._converted(values, rows, path, misfits)
        return self._made(values, rows, path, misfits)

    def _converted(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> list[Any]:
        converted: list[Any] = []
        for value, row in zip(values, rows, strict=True):
            try:
                converted.append(value if type(value) in self.plain else self.convert(value))
            except Misfit as misfit:
                misfits.add(row, path, str(misfit) or f"{shown(value)} is no {self.type}")
                converted.append(None)
        return converted

    def _made(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> pa.Array:
        """Builds the array; after an error builds its halves. Each invalid value costs a few attempts, others are built
        together.
        """
        try:
            return self.make(values)
        except (*NOT_BUILT, Misfit) as error:
            if len(values) == 1:
                why = str(error) if isinstance(error, Misfit) else f"is no {self.type}"
                misfits.add(rows[0], path, f"{shown(values[0])} {why}")
                return pa.nulls(1, self.type)
        half = len(values) // 2
        parts = [slice(0, half), slice(half, None)]
        return pa.concat_arrays([self._made(values[part], rows[part], path, misfits) for part in parts])


class Field:
    """A child of a struct, with the key of its value."""

    __slots__ = ("column", "key", "name", "required")

    def __init__(self, name: str, column: Column, *, key: str | None = None, required: bool = False) -> None:
        self.name, self.column, self.required = name, column, required
        self.key = name if key is None else key


class Struct:
    """A struct column of dictionaries. Missing fields become null, unknown keys are ignored."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.type = pa.struct([pa.field(one.name, one.column.type) for one in fields])

    def build(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> pa.Array:
        values, nulls = _only(dict, values, rows, path, misfits)
        if not self.fields:
            return pa.array([None if value is None else {} for value in values], self.type)
        children = [self._child(one, values, nulls, rows, path, misfits) for one in self.fields]
        return pa.StructArray.from_arrays(children, type=self.type, mask=nulls)

    @staticmethod
    def _child(
        field: Field, values: list[Any], nulls: pa.Array | None, rows: Sequence[int], path: str, misfits: Misfits
    ) -> pa.Array:
        key = field.key
        if nulls is None:
            found = [value.get(key) for value in values]
        else:
            found = [None if value is None else value.get(key) for value in values]
        name = f"{path}.{field.name}" if path else field.name
        if field.required and None in found:
            for value, one, row in zip(values, found, rows, strict=True):
                if value is not None and one is None:
                    misfits.add(row, name, "is null or missing, and the schema has NOT NULL")
        return field.column.build(found, rows, name, misfits)


class List:
    def __init__(self, element: Column) -> None:
        self.element = element
        self.type = pa.list_(pa.field("element", element.type))

    def build(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> pa.Array:
        values, nulls = _only(list, values, rows, path, misfits)
        lengths = [len(value or ()) for value in values]
        inside = list(chain.from_iterable(value or () for value in values))
        elements = self.element.build(inside, _repeated(rows, lengths), path, misfits)
        return pa.ListArray.from_arrays(_offsets(lengths), elements, type=self.type, mask=nulls)


class Map:
    """A map column of dictionaries, whose keys have the right type already."""

    def __init__(self, key: pa.DataType, item: Column) -> None:
        self.item = item
        self.type = pa.map_(key, item.type)

    def build(self, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits) -> pa.Array:
        values, nulls = _only(dict, values, rows, path, misfits)
        lengths = [len(value or ()) for value in values]
        keys = pa.array(list(chain.from_iterable(value or () for value in values)), self.type.key_type)
        inside = list(chain.from_iterable((value or {}).values() for value in values))
        items = self.item.build(inside, _repeated(rows, lengths), path, misfits)
        return pa.MapArray.from_arrays(_offsets(lengths), keys, items, type=self.type, mask=nulls)


_NAMES: dict[Any, str] = {dict: "an object", list: "a list"}


def _only(
    wanted: type, values: list[Any], rows: Sequence[int], path: str, misfits: Misfits
) -> tuple[list[Any], pa.Array | None]:
    """Returns the values, with null for those of another type, and the mask of nulls; no mask without nulls."""
    types = set(map(type, values))
    if types <= {wanted}:
        return values, None
    if not types <= {wanted, NONE}:
        for value, row in zip(values, rows, strict=True):
            if value is not None and type(value) is not wanted:
                misfits.add(row, path, f"{shown(value)} is not {_NAMES[wanted]}")
        values = [value if type(value) is wanted else None for value in values]
    return values, pa.array([value is None for value in values], pa.bool_())


def _repeated(rows: Sequence[int], lengths: list[int]) -> list[int]:
    """Returns the row of each element."""
    return list(chain.from_iterable([row] * length for row, length in zip(rows, lengths, strict=True)))


def _offsets(lengths: list[int]) -> pa.Array:
    return pa.array(accumulate(lengths, initial=0), pa.int32())
