"""Compacts one batch: removes records; the remaining ones keep their offsets, sequence and codec.

Deltas are relative to the base offset and the base timestamp. While those are unchanged the kept records are copied
unchanged. Only a delete horizon changes the base timestamp: it is stored there (KIP-534), so that a batch shows
whether its tombstones were kept long enough. The caller selects the records to remove.
"""

from collections.abc import Callable

from headrace.records.batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from headrace.records.builder import sealed
from headrace.records.compression import DECOMPRESSED_BYTES_MAX, Buffer, compress
from headrace.records.record import NO_VALUE, checked_header, iter_record_spans, records_section
from headrace.records.varint import encode_varint, wrap_int64

# Offset, key, and whether the value is null.
Keep = Callable[[int, bytes | None, bool], bool]


def filter_batch(
    batch: Buffer,
    header: BatchHeader | None,
    keep: Keep,
    *,
    delete_horizon_ms: int | None,
    keep_empty: bool = False,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> bytes | None:
    """Returns the batch with the records for which `keep` returns True; the same bytes if that is all of them.

    `delete_horizon_ms` is set on a batch that has none yet and needs one: if a tombstone is kept, or in a control
    batch. If no record is kept, returns None, or with `keep_empty` a batch without records, which keeps the last
    sequence and offset of its producer.
    """
    header = checked_header(batch, header)
    section = records_section(batch, header, bytes_max=bytes_max)
    kept = bytearray()
    count, max_timestamp, has_tombstones = 0, NO_TIMESTAMP, False
    for offset, timestamp, key, value_at, _, start, end in iter_record_spans(section, header):
        is_tombstone = value_at == NO_VALUE
        if keep(offset, key, is_tombstone):
            kept += section[start:end]
            max_timestamp = timestamp if not count else max(max_timestamp, timestamp)
            has_tombstones = has_tombstones or is_tombstone
            count += 1
    if not count:
        return empty_batch(header) if keep_empty else None
    needs_horizon = (has_tombstones or header.is_control) and not header.has_delete_horizon
    horizon_ms = delete_horizon_ms if needs_horizon else None
    if count == header.record_count and horizon_ms is None:
        return bytes(batch)
    header = header._replace(record_count=count, max_timestamp=max_timestamp)
    if horizon_ms is not None:
        kept = _with_base_timestamp(bytes(kept), header, horizon_ms)
        attributes = header.attributes | DELETE_HORIZON_FLAG
        header = header._replace(attributes=attributes, base_timestamp=horizon_ms)
    return sealed(header, compress(header.codec, kept))


def empty_batch(header: BatchHeader) -> bytes:
    """Returns the header as a batch, as Kafka writes it: no codec, no delete horizon, no base timestamp."""
    kept_flags = TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
    empty = header._replace(attributes=header.attributes & kept_flags, base_timestamp=NO_TIMESTAMP, record_count=0)
    return sealed(empty, b"")


def _with_base_timestamp(section: bytes, header: BatchHeader, base_timestamp: int) -> bytearray:
    """Returns the same records with timestamp deltas relative to another base."""
    moved = bytearray()
    for _, timestamp, _, _, _, start, end in iter_record_spans(section, header):
        attributes_at = _behind_varint(section, start)
        offset_delta_at = _behind_varint(section, attributes_at + 1)
        delta = encode_varint(wrap_int64(timestamp - base_timestamp))
        moved += encode_varint(1 + len(delta) + end - offset_delta_at)
        moved += section[attributes_at : attributes_at + 1]
        moved += delta
        moved += section[offset_delta_at:end]
    return moved


def _behind_varint(section: bytes, position: int) -> int:
    while section[position] > 0x7F:
        position += 1
    return position + 1
