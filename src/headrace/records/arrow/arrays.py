"""Conversion between numpy and Arrow, without pandas.

`pa.array`, `pa.scalar` and `to_numpy` accept any values, and import pandas to detect its types. That import costs
each of Spark's worker processes 0.4 s of CPU time, and headrace does not need it.
"""

from typing import Any

import numpy as np
import pyarrow as pa


def array_of(numbers: Any) -> Any:
    """Returns the Arrow array of a numpy array of integers, without a copy."""
    numbers = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def array_with_nulls(numbers: Any, is_null: Any) -> Any:
    """As `array_of`, with nulls where `is_null` is True."""
    if not is_null.any():
        return array_of(numbers)
    numbers = np.ascontiguousarray(numbers)
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [valid, pa.py_buffer(numbers)])


def bytes_scalar(value: bytes, kind: Any) -> Any:
    """Returns a scalar of a binary or string type. The caller guarantees that the bytes are valid for it."""
    edges = pa.py_buffer(np.array([0, len(value)], dtype=np.int32))
    return pa.Array.from_buffers(kind, 1, [None, edges, pa.py_buffer(value)])[0]


def numbers_of(array: Any, *, null: int = 0) -> Any:
    """Returns an Arrow array of integers as a numpy array; shares its memory unless nulls have to be replaced."""
    dtype = np.dtype(str(array.type))
    if not len(array):
        return np.empty(0, dtype)
    numbers = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if array.null_count:
        numbers = np.where(is_valid(array), numbers, np.array(null, dtype))
    return numbers


def is_valid(array: Any) -> Any:
    """Returns numpy booleans: whether each element is not null."""
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return np.ones(len(array), dtype=bool)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[array.offset : array.offset + len(array)].astype(bool)


def without_nulls(array: Any) -> Any:
    """Replaces nulls in binary or strings by empty values."""
    import pyarrow.compute as pc  # only for writers: readers save the time of the import

    return pc.fill_null(array, bytes_scalar(b"", array.type)) if array.null_count else array
