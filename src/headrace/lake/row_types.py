"""The Arrow types of a lake table's rows, and columns of older files in them.

Pure; performs no I/O.

Columns of a file in the types of a newer table: fields of structs are matched by name. Pure; performs no I/O.
"""

from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

_SMALL_INTEGERS = (pa.int8(), pa.int16())


def stored_schema(schema: pa.Schema, *, small_integers: bool) -> pa.Schema:
    """Whether a column may be null stays as it is; inside of columns everything may."""
    return pa.schema([one.with_type(stored_type(one.type, small_integers=small_integers)) for one in plain(schema)])


def plain(schema: pa.Schema) -> pa.Schema:
    """Without metadata, of the schema and of its fields."""
    return pa.schema([one.remove_metadata() for one in schema])


def nullable(schema: pa.Schema) -> pa.Schema:
    """Spark knows `count(*)` as never null, and the same column of the pipeline's next version may be."""
    return pa.schema([one.with_nullable(True) for one in schema])


def as_in_table(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The rows' columns as nullable as the table's, so that a null that the table forbids fails the write."""
    return pa.schema([one.with_nullable(table.field(one.name).nullable) for one in rows])


def stored_type(kind: pa.DataType, *, small_integers: bool) -> pa.DataType:
    """The type without what is a matter of memory (large offsets, views) or of the writer (names of list elements).

    Without `small_integers`, as in Iceberg, those of 8 and 16 bits are stored in 32.
    """

    def within(part: pa.DataType) -> pa.DataType:
        return stored_type(part, small_integers=small_integers)

    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", within(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(within(kind.key_type), within(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, within(one.type)) for one in kind])
    if kind in _SMALL_INTEGERS and not small_integers:
        return pa.int32()
    return kind


def identified(schema: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The schema with the field ids of the table's columns, for files in which readers find columns by id."""
    return pa.schema([_identified(one, table.field(one.name)) for one in schema])


def _identified(field: pa.Field, like: pa.Field) -> pa.Field:
    return field.with_type(_identified_type(field.type, like.type)).with_metadata(like.metadata)


def _identified_type(kind: pa.DataType, like: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_identified(kind.value_field, like.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_identified(kind.key_field, like.key_field), _identified(kind.item_field, like.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_identified(one, like.field(one.name)) for one in kind])
    return kind


def constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def fitted_to(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Fields that the file does not have are null, as those of a column that is younger than the file."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        have = {field.name: position for position, field in enumerate(column.type)}
        children = [
            fitted_to(column.field(have[one.name]), one.type) if one.name in have else pa.nulls(len(column), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(column))
    if _is_list(kind) and _is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        offsets = pa.array([0, *accumulate(lengths.to_pylist())], pa.int32())  # a slice has those of the whole
        values = fitted_to(pc.list_flatten(column), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=pc.is_null(column))
    return column.cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
