"""Encodes Arrow columns as the record section of a batch, without a Python object per record.

Each record is a prefix (its length and the numbers before the key), the key, the length of the value, the value, and
the headers. Numbers are encoded as varints column by column, and Arrow joins the five pieces of every record. The
joined column's data is the section.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.arrow.arrays import array_of, bytes_scalar, numbers_of, without_nulls
from headrace.records.arrow.record_spans import Int64s

_NO_HEADERS = bytes_scalar(b"\x00", pa.binary())
_NOTHING = bytes_scalar(b"", pa.binary())


class RecordColumns(NamedTuple):
    """Rows to write, as arrays of equal length. Keys, values and headers may be null."""

    timestamps: Int64s  # milliseconds
    keys: Any | None  # binary
    values: Any  # binary
    headers: Any | None  # list of struct of key: string, value: binary

    def take(self, rows: Any) -> "RecordColumns":
        index = array_of(rows)
        return RecordColumns(
            self.timestamps[rows],
            None if self.keys is None else self.keys.take(index),
            self.values.take(index),
            None if self.headers is None else self.headers.take(index),
        )

    def slice(self, start: int, end: int) -> "RecordColumns":
        length = end - start
        return RecordColumns(
            self.timestamps[start:end],
            None if self.keys is None else self.keys.slice(start, length),
            self.values.slice(start, length),
            None if self.headers is None else self.headers.slice(start, length),
        )

    def sizes(self) -> Int64s:
        """Returns an upper estimate of the bytes that each row takes in a batch."""
        sizes = _lengths(self.values) + 24
        if self.keys is not None:
            sizes += _lengths(self.keys)
        if self.headers is not None:
            sizes += _lengths(_header_blobs(self.headers))
        return sizes


def build_section(columns: RecordColumns) -> tuple[bytes, int, int]:
    """Returns the record section of a batch, with its base and maximum timestamps. At least one row is required."""
    count = len(columns.values)
    base_timestamp, max_timestamp = int(columns.timestamps[0]), int(columns.timestamps.max())
    deltas = columns.timestamps - base_timestamp
    key_bytes = np.full(count, -1, dtype=np.int64) if columns.keys is None else _lengths(columns.keys, null=-1)
    value_bytes = _lengths(columns.values, null=-1)
    tails = _NO_HEADERS if columns.headers is None else _header_blobs(columns.headers)
    tail_bytes = 1 if columns.headers is None else _lengths(tails)
    offsets = np.arange(count, dtype=np.int64)
    lengths = (
        1
        + varint_bytes(deltas)
        + varint_bytes(offsets)
        + varint_bytes(key_bytes)
        + np.maximum(key_bytes, 0)
        + varint_bytes(value_bytes)
        + np.maximum(value_bytes, 0)
        + tail_bytes
    )
    pieces = [varint_column([lengths, np.zeros(count, dtype=np.int64), deltas, offsets, key_bytes])]
    if columns.keys is not None:
        pieces.append(without_nulls(columns.keys))
    pieces += [varint_column([value_bytes]), without_nulls(columns.values), tails]
    return _joined_bytes(pc.binary_join_element_wise(*pieces, _NOTHING)), base_timestamp, max_timestamp


def varint_bytes(numbers: Int64s) -> Int64s:
    """Returns the encoded length of each number."""
    zigzag = _zigzag(numbers)
    count = np.ones(len(numbers), dtype=np.int64)
    largest = int(zigzag.max(initial=0))
    for bits in range(7, largest.bit_length(), 7):
        count += zigzag >= np.uint64(1 << bits)
    return count


def varint_column(columns: list[Int64s]) -> Any:
    """Returns a binary array with the concatenated varints of these columns for every row.

    Bytes are computed column by column, as wide as its largest number; the bytes that a row does not use are dropped.
    """
    sizes = [varint_bytes(numbers) for numbers in columns]
    widths = [int(size.max(initial=1)) for size in sizes]
    digits = np.empty((len(columns[0]), sum(widths)), dtype=np.uint8)
    used = np.empty(digits.shape, dtype=bool)
    at = 0
    for numbers, size, width in zip(columns, sizes, widths, strict=True):
        zigzag = _zigzag(numbers)
        for place in range(width):
            septet = (zigzag >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
            digits[:, at] = septet | (size > place + 1).view(np.uint8) << 7
            used[:, at] = size > place
            at += 1
    edges = np.zeros(len(digits) + 1, dtype=np.int32)
    np.cumsum(sum(sizes), out=edges[1:])
    return pa.Array.from_buffers(pa.binary(), len(digits), [None, pa.py_buffer(edges), pa.py_buffer(digits[used])])


def _zigzag(numbers: Int64s) -> Any:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _lengths(array: Any, *, null: int = 0) -> Int64s:
    lengths: Int64s = numbers_of(pc.binary_length(array), null=null).astype(np.int64)
    return lengths


def _header_blobs(headers: Any) -> Any:
    """Returns the header count and the headers of each row, encoded."""
    counts = numbers_of(pc.list_value_length(headers)).astype(np.int64)
    flat = headers.flatten()
    names = flat.field("key").cast(pa.binary())
    values = flat.field("value").cast(pa.binary())
    if not len(flat):
        return varint_column([counts])
    if names.null_count:
        raise ValueError("a header without a key cannot be written")
    encoded = pc.binary_join_element_wise(
        varint_column([_lengths(names)]),
        names,
        varint_column([_lengths(values, null=-1)]),
        without_nulls(values),
        _NOTHING,
    )
    edges = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=edges[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(array_of(edges), encoded), _NOTHING)
    return pc.binary_join_element_wise(varint_column([counts]), joined, _NOTHING)


def _joined_bytes(array: Any) -> bytes:
    _, edges, data = array.buffers()
    first, last = np.frombuffer(edges, np.int32)[[array.offset, array.offset + len(array)]]
    return bytes(memoryview(data)[first:last])
