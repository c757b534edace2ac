"""Builds batches from records, and changes the codec or the timestamps of whole batches.

Every result has a valid length and a valid checksum. Offsets and timestamps are arguments.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID
from headrace.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    batch_crc,
)
from headrace.records.compression import DECOMPRESSED_BYTES_MAX, Buffer, Codec, compress
from headrace.records.record import FORMAT_VERSION, checked_header, records_section
from headrace.records.varint import encode_varint, wrap_int64

_CRC = Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35

_NULL = encode_varint(-1)
_NO_ATTRIBUTES = b"\x00"


class NewRecord(NamedTuple):
    """A record without an offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_EPOCH,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
) -> bytes:
    """Returns a complete batch; its records take consecutive offsets from `base_offset` on."""
    section = bytearray()
    count, base_timestamp, max_timestamp = 0, NO_TIMESTAMP, NO_TIMESTAMP
    for record in records:
        if not count:
            base_timestamp = max_timestamp = record.timestamp
        max_timestamp = max(max_timestamp, record.timestamp)
        section += encode_record(record, wrap_int64(record.timestamp - base_timestamp), count)
        count += 1
    assert count, "only compaction writes a batch without records"
    attributes = (
        codec
        | (TRANSACTIONAL_FLAG if transactional else 0)
        | (CONTROL_FLAG if control else 0)
        | (TIMESTAMP_TYPE_FLAG if log_append_time else 0)
    )
    packed = compress(codec, section, level)
    batch = bytearray(
        HEADER.pack(
            base_offset,
            HEADER_BYTES - LENGTH_OVERHEAD + len(packed),
            leader_epoch,
            FORMAT_VERSION,
            0,
            attributes,
            count - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    )
    batch += packed
    _CRC.pack_into(batch, _CRC_AT, batch_crc(batch))
    return bytes(batch)


def encode_record(record: NewRecord, timestamp_delta: int, offset_delta: int) -> bytes:
    _, key, value, headers = record
    if key is not None and value is not None and not headers:
        # The common case of coordinator records.
        body = b"\x00%b%b%b%b%b%b\x00" % (
            encode_varint(timestamp_delta),
            encode_varint(offset_delta),
            encode_varint(len(key)),
            key,
            encode_varint(len(value)),
            value,
        )
        return encode_varint(len(body)) + body
    parts = [_NO_ATTRIBUTES, encode_varint(timestamp_delta), encode_varint(offset_delta)]
    _add_sized(parts, key)
    _add_sized(parts, value)
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        _add_sized(parts, name.encode("utf-8"))
        _add_sized(parts, content)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _add_sized(parts: list[bytes], content: bytes | None) -> None:
    if content is None:
        parts.append(_NULL)
    else:
        parts.append(encode_varint(len(content)))
        parts.append(content)


def sealed(header: BatchHeader, packed: Buffer) -> bytes:
    """Returns a batch of this header and these (already compressed) records, with length and checksum."""
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(packed)
    batch = bytearray(HEADER.pack(*header._replace(length=length, crc=0)))
    batch += packed
    _CRC.pack_into(batch, _CRC_AT, batch_crc(batch))
    return bytes(batch)


def recompress(
    batch: Buffer,
    header: BatchHeader | None,
    codec: int,
    level: int | None = None,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """Returns the same records with another codec. They are not decoded."""
    header = checked_header(batch, header)
    if header.codec == codec:
        return bytes(batch)
    section = records_section(batch, header, bytes_max=bytes_max)
    attributes = header.attributes & ~CODEC_MASK | codec
    return sealed(header._replace(attributes=attributes), compress(codec, section, level))


def with_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Sets the batch to LogAppendTime, in place: consumers then return `now_ms` as the timestamp of all its records."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_FLAG)
    _TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _CRC.pack_into(batch, _CRC_AT, batch_crc(batch))
