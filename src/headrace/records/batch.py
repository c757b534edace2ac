"""The header of a record batch (format v2), read and patched in place.

A batch is opaque to the broker: Produce and Fetch read only this header.

     0        8     12     16    17    21      23        27         35
    ┌────────┬─────┬──────┬─────┬─────┬───────┬─────────┬──────────┬──────────┐
    │ base   │ len │leader│magic│crc  │attri- │last off-│base      │max       │
    │ offset │     │epoch │ (2) │ 32c │butes  │set delta│timestamp │timestamp │
    └────────┴─────┴──────┴─────┴─────┴───────┴─────────┴──────────┴──────────┘
    └─ outside the checksum ────────┘ └─ inside the checksum ─────────────────┄

        43         51       53         57      61
    ┄──┬──────────┬────────┬──────────┬───────┬───────────────────────┐
       │ producer │producer│ base     │record │ records               │
       │ id       │epoch   │ sequence │count  │ (perhaps compressed)  │
    ┄──┴──────────┴────────┴──────────┴───────┴───────────────────────┘

`len` counts the bytes after itself. The checksum covers neither base offset nor leader epoch, so that an append
writes them in place and leaves the client's bytes unchanged.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import (
    CorruptBatch,
    InvalidRecord,
    UnsupportedCompression,
    UnsupportedMessageFormat,
)
from headrace.records.compression import decompressed_bytes_limit
from headrace.records.crc import crc32c

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_OVERHEAD = 12  # the length field does not count the base offset and itself
CRC_START = 21  # the checksum covers everything from the attributes on
_OFFSET_AND_LENGTH = Struct(">qi")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_LEADER_EPOCH_AT = 12
_ATTRIBUTES_LOW_BYTE_AT = 22

CODEC_MASK = 0x07
CODEC_MAX = 4  # zstd; readers would fail on the remaining three numbers
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

RECORD_BYTES_MIN = 7  # seven fields of at least one byte each

NO_TIMESTAMP = -1
NO_SEQUENCE = -1


# What NamedTuple's own constructors call; a header is created for every batch.
_new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def placed(self, base_offset: int, leader_epoch: int) -> "BatchHeader":
        """Returns the header with an offset and a leader epoch. `_replace` would take five times as long."""
        return _new_tuple(BatchHeader, (base_offset, self[1], leader_epoch, *self[3:]))

    @property
    def total_bytes(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Set by compaction: the base timestamp then is the time from which tombstones may be removed."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_FLAG)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record. Sequences wrap from 2^31-1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def is_transactional(batch: memoryview) -> bool:
    """Returns whether the transactional flag is set; False if the buffer is too short for a header."""
    return len(batch) >= HEADER_BYTES and bool(batch[_ATTRIBUTES_LOW_BYTE_AT] & TRANSACTIONAL_FLAG)


def parse_header(buffer: memoryview | bytes | bytearray, position: int = 0) -> BatchHeader:
    """Returns the header at `position`. The caller guarantees that HEADER_BYTES are there."""
    return _new_tuple(BatchHeader, HEADER.unpack_from(buffer, position))


def batch_crc(batch: memoryview | bytes | bytearray) -> int:
    """Returns the checksum computed from the bytes of the batch."""
    return crc32c(memoryview(batch)[CRC_START:])


def produced_batch(records: memoryview) -> BatchHeader:
    """Returns the verified header of the only batch in a Produce request for a partition.

    Raises the reason for rejection.
    """
    size = len(records)
    if size <= 16:
        raise CorruptBatch(f"{size} bytes cannot hold a record batch")
    if records[16] in (0, 1):
        raise UnsupportedMessageFormat(f"record format v{records[16]} is not supported; use format v2")
    if size < HEADER_BYTES:
        raise CorruptBatch(f"{size} bytes cannot hold a batch header of {HEADER_BYTES} bytes")
    header = parse_header(records)
    if header.magic != 2:
        raise CorruptBatch(f"unknown record format v{header.magic}")
    total = header.length + LENGTH_OVERHEAD
    if total < HEADER_BYTES or total > size:
        raise CorruptBatch(f"the batch header has a length of {total} bytes, but the request has {size}")
    if total != size:
        raise InvalidRecord("a Produce holds exactly one batch for a partition")
    if header.crc != crc32c(records[CRC_START:]):
        raise CorruptBatch("the checksum of the batch is wrong")
    if header.attributes & CONTROL_FLAG:
        raise InvalidRecord("clients may not write control batches")
    if header.attributes & CODEC_MASK > CODEC_MAX:
        raise UnsupportedCompression(f"there is no compression codec {header.codec}")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise InvalidRecord(
            f"a batch of {header.record_count} records cannot end at offset delta {header.last_offset_delta}"
        )
    if header.record_count * RECORD_BYTES_MIN > size - HEADER_BYTES:
        _check_count_fits(header, size - HEADER_BYTES)
    if header.producer_id < 0 and header.attributes & TRANSACTIONAL_FLAG:
        raise InvalidRecord("a transactional batch needs a producer id")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"producer {header.producer_id} sent a batch without a sequence number")
    return header


def _check_count_fits(header: BatchHeader, packed_bytes: int) -> None:
    """Rejects a record count that exceeds what the bytes can contain: it would consume that many offsets."""
    plain_bytes_max = decompressed_bytes_limit(packed_bytes) if header.codec else packed_bytes
    if header.record_count * RECORD_BYTES_MIN > plain_bytes_max:
        raise InvalidRecord(
            f"Found invalid number of records in batch header: {header.record_count} records of at least "
            f"{RECORD_BYTES_MIN} bytes in at most {plain_bytes_max} bytes"
        )


def patch_offset_and_epoch(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch in place. The checksum covers neither."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)


def walk(buffer: memoryview | bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each complete batch in the buffer; stops before a partial one at the end."""
    position, size = 0, len(buffer)
    while position + HEADER_BYTES <= size:
        header = parse_header(buffer, position)
        total = header.length + LENGTH_OVERHEAD
        if total < HEADER_BYTES:
            raise CorruptBatch(f"invalid length {total} of the batch at byte {position}")
        if position + total > size:
            return
        yield position, header
        position += total
