"""Decodes record batches into Arrow columns, without a Python object per record.

The bytes of keys and values are copied once, by Arrow: an array over the whole section alternates gaps and fields,
and `take` selects the fields. Needs numpy and pyarrow, which the extra `spark` installs; the broker does not import
this module.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headrace.model.errors import CorruptBatch
from headrace.records.arrow.arrays import array_of, array_with_nulls
from headrace.records.arrow.record_spans import Int64s, Spans, locate, record_starts, varints
from headrace.records.batch import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader
from headrace.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from headrace.records.record import FORMAT_VERSION

KEY, VALUE, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS = (
    "key",
    "value",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
HEADER_STRUCT = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_STRUCT))

# Arrow's binary type has 32-bit offsets; a group of batches stays far below, whatever the size of its last one.
GROUP_BYTES_MAX = 32 * 1024 * 1024

Batch = tuple[memoryview, BatchHeader]
Section = tuple[bytes, BatchHeader]  # the records of a batch, decompressed
Grouped = TypeVar("Grouped", Batch, Section)


class Columns(NamedTuple):
    """Rows of one partition in offset order; only the requested columns."""

    offsets: Int64s
    arrays: dict[str, Any]

    def within(self, first: int, end: int) -> "Columns":
        """Returns the rows with first <= offset < end. Fetched batches are whole and may exceed the requested range."""
        low, high = (int(at) for at in np.searchsorted(self.offsets, [first, end]))
        if low == 0 and high == len(self.offsets):
            return self
        sliced = {name: array.slice(low, high - low) for name, array in self.arrays.items()}
        return Columns(self.offsets[low:high], sliced)


def decode_columns(batches: Sequence[Batch], wanted: Collection[str]) -> Columns:
    """Decodes all records of these batches, in order. None of them may be a control batch."""
    return _decoded([_section(one) for one in batches], wanted)


def decode_groups(batches: Iterable[Batch], wanted: Collection[str], rows_max: int) -> Iterator[Columns]:
    """As `decode_columns`, in groups of at most `rows_max` records and GROUP_BYTES_MAX bytes, or of one larger batch.

    Sizes are those of decompressed records: a fetch of a few kilobytes may contain gigabytes.
    """
    for group in grouped(map(_section, batches), rows_max):
        yield _decoded(group, wanted)


def _decoded(group: Sequence[Section], wanted: Collection[str]) -> Columns:
    sections = [section for section, _ in group]
    section = sections[0] if len(sections) == 1 else b"".join(sections)
    headers = [header for _, header in group]
    counts = [header.record_count for header in headers]
    spans = locate(section, _starts(section, sections, headers))
    _check_deltas(spans, headers, counts)
    offsets = spans.offset_delta + _per_record([header.base_offset for header in headers], counts)
    arrays: dict[str, Any] = {}
    if KEY in wanted or VALUE in wanted:
        arrays |= _keys_and_values(section, spans, wanted)
    if OFFSET in wanted:
        arrays[OFFSET] = array_of(offsets)
    if TIMESTAMP in wanted:
        arrays[TIMESTAMP] = _timestamps(spans, headers, counts)
    if TIMESTAMP_TYPE in wanted:
        types = [int(header.uses_log_append_time) for header in headers]
        arrays[TIMESTAMP_TYPE] = array_of(_per_record(types, counts).astype(np.int32))
    if HEADERS in wanted:
        arrays[HEADERS] = _header_lists(section, spans)
    return Columns(offsets, arrays)


def grouped(batches: Iterable[Grouped], rows_max: int) -> Iterator[Sequence[Grouped]]:
    """Groups consecutive batches to decode together: for small batches, calls would cost more than records.

    A group has at most `rows_max` rows, or one batch that is larger by itself.
    """
    group: list[Grouped] = []
    rows = size = 0
    for batch in batches:
        if group and (rows + batch[1].record_count > rows_max or size + len(batch[0]) > GROUP_BYTES_MAX):
            yield group
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += batch[1].record_count
        size += len(batch[0])
    if group:
        yield group


def _section(packed_batch: Batch) -> Section:
    batch, header = packed_batch
    if header.magic != FORMAT_VERSION:
        raise CorruptBatch(f"records of format v{header.magic} cannot be read")
    packed = batch[HEADER_BYTES:]
    section = decompress(header.codec, packed, bytes_max=DECOMPRESSED_BYTES_MAX) if header.record_count else b""
    if not 0 <= header.record_count <= len(section) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{len(section)} bytes cannot hold {header.record_count} records")
    return section, header


def _starts(joined: bytes, sections: Sequence[bytes], headers: Sequence[BatchHeader]) -> Int64s:
    """Returns the start of each record in the joined sections."""
    found: list[Int64s] = [np.empty(0, dtype=np.int64)]
    position = 0
    for section, header in zip(sections, headers, strict=True):
        end = position + len(section)
        found.append(record_starts(joined, position, end, header.record_count))
        position = end
    return np.concatenate(found)


def _per_record(of_batch: Sequence[int], counts: Sequence[int]) -> Int64s:
    return np.repeat(np.array(of_batch, dtype=np.int64), counts)


def _check_deltas(spans: Spans, headers: Sequence[BatchHeader], counts: Sequence[int]) -> None:
    """Checks that offsets rise within a batch and end in it: `within` selects a range by binary search."""
    deltas = spans.offset_delta
    last = _per_record([header.last_offset_delta for header in headers], counts)
    firsts = np.zeros(len(deltas), dtype=bool)
    starts = np.cumsum([0, *counts])[:-1]
    firsts[starts[starts < len(deltas)]] = True
    rises = np.empty(len(deltas), dtype=bool)
    rises[:1] = True
    rises[1:] = deltas[1:] > deltas[:-1]
    if ((deltas < 0) | (deltas > last) | ~(rises | firsts)).any():
        raise CorruptBatch("the offsets of the records do not rise within their batch")


def _keys_and_values(section: bytes, spans: Spans, wanted: Collection[str]) -> dict[str, Any]:
    """Takes keys and values from an array over the section: key, gap, value, gap, key, …"""
    count = len(spans.end)
    if not count:
        return {name: pa.nulls(0, pa.binary()) for name in (KEY, VALUE) if name in wanted}
    edges = np.empty(4 * count, dtype=np.int32)
    edges[0::4] = spans.key_at
    edges[1::4] = spans.key_at + np.maximum(spans.key_bytes, 0)
    edges[2::4] = spans.value_at
    edges[3::4] = spans.headers_at
    pieces = _pieces(section, edges, pa.binary())
    index = np.arange(0, 4 * count, 4, dtype=np.int32)
    arrays = {}
    if KEY in wanted:
        arrays[KEY] = _take(pieces, index, spans.key_bytes < 0)
    if VALUE in wanted:
        arrays[VALUE] = _take(pieces, index + 2, spans.value_bytes < 0)
    return arrays


def _pieces(section: bytes, edges: Any, kind: Any) -> Any:
    """Returns an array of slices of the section at these edges.

    They must not descend, because Arrow does not check them.
    """
    return pa.Array.from_buffers(kind, len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(section)])


def _take(pieces: Any, index: Any, is_null: Any) -> Any:
    return pieces.take(array_with_nulls(index, is_null))


def _timestamps(spans: Spans, headers: Sequence[BatchHeader], counts: Sequence[int]) -> Any:
    """Returns microseconds, as in Spark. Overflow wraps, as in Java."""
    base = [header.max_timestamp if header.uses_log_append_time else header.base_timestamp for header in headers]
    own_clock = _per_record([int(not header.uses_log_append_time) for header in headers], counts)
    milliseconds = _per_record(base, counts) + spans.timestamp_delta * own_clock
    return array_of(milliseconds * 1000).view(pa.timestamp("us", "UTC"))


def _header_lists(section: bytes, spans: Spans) -> Any:
    """Returns a list for every record, empty if it has no headers and never null."""
    data = np.frombuffer(section, np.uint8)
    try:
        counts, position = varints(data, spans.headers_at)
        if (counts < 0).any() or (counts > spans.end - position).any():
            raise CorruptBatch("a record has a header count larger than its bytes")
        rows, edges, has_value, position = _header_edges(data, counts, position)
    except IndexError:
        raise CorruptBatch("the records end inside a header") from None
    if (position != spans.end).any():
        raise CorruptBatch("a record does not end where its headers do")
    order = np.argsort(rows, kind="stable")
    edges, has_value = edges[order], has_value[order]
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    structs = _header_structs(section, edges, has_value)
    return pa.ListArray.from_arrays(array_of(offsets), structs, type=HEADERS_TYPE)


def _header_edges(data: Any, counts: Int64s, position: Int64s) -> tuple[Any, Any, Any, Int64s]:
    """Row, the four edges of name and value, and whether there is a value: of all first headers, all second ones, …"""
    rows: list[Any] = [np.empty(0, dtype=np.int64)]
    edges: list[Any] = [np.empty((0, 4), dtype=np.int32)]
    has_value: list[Any] = [np.empty(0, dtype=bool)]
    position = position.copy()
    active = np.flatnonzero(counts > 0)
    done = 0
    while len(active):
        name_bytes, name_at = varints(data, position[active])
        name_end = name_at + np.maximum(name_bytes, 0)
        value_bytes, value_at = varints(data, name_end)
        value_end = value_at + np.maximum(value_bytes, 0)
        if (name_bytes < 0).any() or (value_bytes < -1).any() or (value_end > len(data)).any():
            raise CorruptBatch("a header that reaches beyond its record, or has no key")
        rows.append(active)
        edges.append(np.stack((name_at, name_end, value_at, value_end), axis=1).astype(np.int32))
        has_value.append(value_bytes >= 0)
        position[active] = value_end
        done += 1
        active = active[counts[active] > done]
    return np.concatenate(rows), np.concatenate(edges), np.concatenate(has_value), position


def _header_structs(section: bytes, edges: Any, has_value: Any) -> Any:
    if not len(edges):
        return pa.nulls(0, HEADER_STRUCT)
    flat = np.ascontiguousarray(edges).reshape(-1)
    pieces = _pieces(section, flat, pa.binary())
    index = np.arange(0, len(flat), 4, dtype=np.int32)
    names = _utf8(pieces.take(array_of(index)))
    values = _take(pieces, index + 2, ~has_value)
    return pa.StructArray.from_arrays([names, values], fields=list(HEADER_STRUCT))


def _utf8(names: Any) -> Any:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # As in Java: an invalid byte in a header name must not make the other records unreadable.
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
