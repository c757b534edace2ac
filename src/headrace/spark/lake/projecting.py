"""Columns of a file in the types of a newer table: fields of structs are matched by name. Pure; performs no I/O."""

from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc


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
