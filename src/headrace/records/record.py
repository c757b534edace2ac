"""Decodes the records of a batch: whole records, or spans of raw bytes.

A record, all numbers zigzag varints except the attributes, which are unused:

    ┌──────┬──────────┬───────────────┬────────────┬─────────┬─────┬───────────┬───────┬────────────┬───────
    │length│attributes│timestamp delta│offset delta│key bytes│ key │value bytes│ value │header count│headers
    └──────┴──────────┴───────────────┴────────────┴─────────┴─────┴───────────┴───────┴────────────┴───────
           └─ counted by the length ────────────────────────────────────────────────────────────────────────
    a header:  key bytes, key (UTF-8), value bytes, value        -1 bytes of key or value: null

The caller verifies the checksum. These functions check that the records fill their section exactly, and use memory
proportional to its bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.model.errors import CorruptBatch
from headrace.records.batch import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader, parse_header
from headrace.records.compression import DECOMPRESSED_BYTES_MAX, Buffer, decompress
from headrace.records.varint import rest_of_varint, unzigzag, wrap_int64

Headers = tuple[tuple[str, bytes | None], ...]

# One record of the scan below: offset, timestamp, key, start (NO_VALUE: null) and end of its value, start and end of
# the record. A bare tuple: a named one would make the scan a fifth slower.
Placed = tuple[int, int, bytes | None, int, int, int, int]
NO_VALUE = -1

FORMAT_VERSION = 2

_NULL = 1  # the zigzag form of -1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordSpan(NamedTuple):
    """Key and raw bytes of a record, for compaction."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    raw: bytes  # from its length on; the deltas inside are relative to the base of its batch


def decode_records(
    batch: Buffer, header: BatchHeader | None = None, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """Returns every record of the batch. Raises CorruptBatch if any of them is corrupt."""
    return list(iter_records(batch, header, bytes_max=bytes_max))


def iter_records(
    batch: Buffer, header: BatchHeader | None = None, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """Yields the records one at a time, in constant memory. Raises CorruptBatch when it reaches a corrupt one."""
    header = checked_header(batch, header)
    section = records_section(batch, header, bytes_max=bytes_max)
    for offset, timestamp, key, value_at, value_end, _, end in iter_record_spans(section, header):
        value = section[value_at:value_end] if value_at >= 0 else None
        # Checked inline, not only in `headers_of`: a call per record would be a measurable cost.
        has_none = value_end + 1 == end and section[value_end] == 0
        headers = () if has_none else headers_of(section, value_end, end)
        # Takes half the time of calling Record, which does the same in a Python function.
        yield tuple.__new__(Record, (offset, timestamp, key, value, headers))


def record_spans(
    batch: Buffer, header: BatchHeader | None = None, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[RecordSpan]:
    """Yields the records as raw bytes. Skips their headers without decoding them."""
    header = checked_header(batch, header)
    section = records_section(batch, header, bytes_max=bytes_max)
    for offset, timestamp, key, value_at, _, start, end in iter_record_spans(section, header):
        yield tuple.__new__(RecordSpan, (offset, timestamp, key, value_at == NO_VALUE, section[start:end]))


def checked_header(batch: Buffer, header: BatchHeader | None = None) -> BatchHeader:
    """Returns the header after a check that the buffer contains exactly this batch. Raises CorruptBatch."""
    size = len(batch)
    if size < HEADER_BYTES:
        raise CorruptBatch(f"{size} bytes cannot hold a batch header of {HEADER_BYTES} bytes")
    if header is None:
        header = parse_header(batch)
    if header.magic != FORMAT_VERSION:
        raise CorruptBatch(f"records of format v{header.magic} cannot be read")
    if header.total_bytes != size:
        raise CorruptBatch(f"the batch header has a length of {header.total_bytes} bytes, but the buffer has {size}")
    return header


def records_section(batch: Buffer, header: BatchHeader, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Returns the decompressed bytes after the header. Raises CorruptBatch or MessageTooLarge."""
    packed = memoryview(batch)[HEADER_BYTES:]
    section = decompress(header.codec, packed, bytes_max=bytes_max) if header.record_count else bytes(packed)
    if not 0 <= header.record_count <= len(section) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{len(section)} bytes cannot hold {header.record_count} records")
    return section


def iter_record_spans(section: bytes, header: BatchHeader) -> Iterator[Placed]:
    """Scans the records. All reads depend on this loop, so it decodes varints of one and two bytes inline.

    Within a record the position only grows, and the record's own length bounds it: a key or a value with an excessive
    length exceeds that end, or the data, and never moves backward.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.uses_log_append_time else None
    delta_before, last_delta = -1, header.last_offset_delta
    position, size = 0, len(section)
    try:
        for _ in range(header.record_count):
            start = position
            raw = section[position]
            position += 1
            if raw > 0x7F:
                raw += (section[position] - 1) << 7
                position += 1
                if raw > 0x3FFF:
                    raw, position = rest_of_varint(section, position - 1, raw)
            end = position + (raw >> 1)
            if raw & 1 or end > size:
                raise CorruptBatch(f"a record at byte {start} of {size} claims {unzigzag(raw)} bytes")

            raw = section[position + 1]  # after the attributes
            position += 2
            if raw > 0x7F:
                raw += (section[position] - 1) << 7
                position += 1
                if raw > 0x3FFF:
                    raw, position = rest_of_varint(section, position - 1, raw)
            timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1)) if append_time is None else append_time
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                timestamp = wrap_int64(timestamp)

            raw = section[position]
            position += 1
            if raw > 0x7F:
                raw += (section[position] - 1) << 7
                position += 1
                if raw > 0x3FFF:
                    raw, position = rest_of_varint(section, position - 1, raw)
            delta = raw >> 1
            if raw & 1 or not delta_before < delta <= last_delta:
                raise CorruptBatch(f"offset delta {unzigzag(raw)} cannot follow {delta_before}")
            delta_before = delta

            raw = section[position]
            position += 1
            if raw > 0x7F:
                raw += (section[position] - 1) << 7
                position += 1
                if raw > 0x3FFF:
                    raw, position = rest_of_varint(section, position - 1, raw)
            key_at, key = position, None
            if raw != _NULL:
                if raw & 1:
                    raise _negative(raw)
                position += raw >> 1
                key = section[key_at:position]

            raw = section[position]
            position += 1
            if raw > 0x7F:
                raw += (section[position] - 1) << 7
                position += 1
                if raw > 0x3FFF:
                    raw, position = rest_of_varint(section, position - 1, raw)
            value_at = NO_VALUE
            if raw != _NULL:
                if raw & 1:
                    raise _negative(raw)
                value_at = position
                position += raw >> 1
            if position >= end:  # the header count is missing
                raise CorruptBatch(f"the record at byte {start} ends before its headers")
            yield base_offset + delta, timestamp, key, value_at, position, start, end
            position = end
    except IndexError:
        raise CorruptBatch("the records end inside a record") from None
    if position != size:
        raise CorruptBatch(f"{size - position} bytes follow the last record")


def _negative(raw: int) -> CorruptBatch:
    return CorruptBatch(f"a key or value of {unzigzag(raw)} bytes")


def headers_of(section: bytes, position: int, end: int) -> Headers:
    """Returns the headers of a record, which are between the end of its value and the end of the record."""
    if position + 1 == end and section[position] == 0:
        return ()
    headers: list[tuple[str, bytes | None]] = []
    try:
        raw, position = _varint(section, position)
        if raw & 1 or raw >> 1 > end - position:
            raise CorruptBatch(f"{unzigzag(raw)} headers in {end - position} bytes")
        for _ in range(raw >> 1):
            name, position = _sized(section, position)
            if name is None:
                raise CorruptBatch("a header without a key")
            value, position = _sized(section, position)
            # As in Java: an invalid byte in a header name must not make the other records unreadable.
            headers.append((name.decode("utf-8", "replace"), value))
    except IndexError:
        raise CorruptBatch("the records end inside a header") from None
    if position != end:
        raise CorruptBatch(f"a record has its end at byte {end}, but its headers end at {position}")
    return tuple(headers)


def _sized(section: bytes, position: int) -> tuple[bytes | None, int]:
    raw, position = _varint(section, position)
    if raw == _NULL:
        return None, position
    if raw & 1:
        raise _negative(raw)
    end = position + (raw >> 1)
    return section[position:end], end


def _varint(section: bytes, position: int) -> tuple[int, int]:
    raw = section[position]
    return (raw, position + 1) if raw < 0x80 else rest_of_varint(section, position + 1, raw)
