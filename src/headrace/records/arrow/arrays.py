"""Between numpy and Arrow, without pandas.

`pa.array`, `pa.scalar` and `to_numpy` do the same for anybody's values; but to know whether they deal with something of
pandas they import it, which costs each of Spark's worker processes 0.4 s of CPU, and none of ours has a use for it.
"""

from typing import Any

import numpy as np
import pyarrow as pa


def array_of(numbers: Any) -> Any:
    """A numpy array of integers, not copied."""
    numbers = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def array_with_nulls(numbers: Any, is_null: Any) -> Any:
    """The same, null where `is_null` says so."""
    if not is_null.any():
        return array_of(numbers)
    numbers = np.ascontiguousarray(numbers)
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [valid, pa.py_buffer(numbers)])


def bytes_scalar(value: bytes, kind: Any) -> Any:
    """Of a binary or string type, which the bytes must fit."""
    edges = pa.py_buffer(np.array([0, len(value)], dtype=np.int32))
    return pa.Array.from_buffers(kind, 1, [None, edges, pa.py_buffer(value)])[0]


def numbers_of(array: Any, *, null: int = 0) -> Any:
    """An Arrow array of integers as numpy's; shares its memory, except where nulls have to become a number."""
    dtype = np.dtype(str(array.type))
    if not len(array):
        return np.empty(0, dtype)
    numbers = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if array.null_count:
        numbers = np.where(is_valid(array), numbers, np.array(null, dtype))
    return numbers


def is_valid(array: Any) -> Any:
    """Where it is not null, as numpy's booleans."""
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return np.ones(len(array), dtype=bool)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[array.offset : array.offset + len(array)].astype(bool)


def without_nulls(array: Any) -> Any:
    """Of binary or strings: nothing instead of null."""
    import pyarrow.compute as pc  # for writers alone: readers save the time that its import takes

    return pc.fill_null(array, bytes_scalar(b"", array.type)) if array.null_count else array
