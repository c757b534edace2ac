"""Arrow types of a lake table's rows, and conversion of columns of older files to them. Fields of structs are matched
by name. Pure; performs no I/O.
"""

from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

_SMALL_INTEGERS = (pa.int8(), pa.int16())


def stored_schema(schema: pa.Schema, *, small_integers: bool) -> pa.Schema:
    """Returns the schema in stored types. Columns keep their nullability; everything inside of them is nullable."""
    return pa.schema([one.with_type(stored_type(one.type, small_integers=small_integers)) for one in plain(schema)])


def plain(schema: pa.Schema) -> pa.Schema:
    """Returns the schema without metadata of its fields and of itself."""
    return pa.schema([one.remove_metadata() for one in schema])


def nullable(schema: pa.Schema) -> pa.Schema:
    """Makes all columns nullable. Spark declares `count(*)` as not null, and the same column may be nullable in the
    next version of the pipeline.
    """
    return pa.schema([one.with_nullable(True) for one in schema])


def as_in_table(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Gives the rows' columns the nullability of the table's, so that a forbidden null fails the write."""
    return pa.schema([one.with_nullable(table.field(one.name).nullable) for one in rows])


def stored_type(kind: pa.DataType, *, small_integers: bool) -> pa.DataType:
    """Returns the type without details of memory layout (large offsets, views) and of the writer (names of list
    elements).

    Without `small_integers`, as in Iceberg, integers of 8 and 16 bits are stored in 32.
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
    """Returns the schema with the field ids of the table's columns, by which readers match columns."""
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
    """Converts a column to a type. Missing fields become null, as do columns that were added after the file was
    written.
    """
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
        # Computed, because the offsets of a slice refer to the whole array.
        offsets = pa.array([0, *accumulate(lengths.to_pylist())], pa.int32())
        values = fitted_to(pc.list_flatten(column), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=pc.is_null(column))
    return column.cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
