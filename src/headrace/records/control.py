"""Control records: the markers that end a transaction in each of its partitions.

    key    ┌─────────┬──────┐      value  ┌─────────┬───────────────────┐
           │ version │ type │             │ version │ coordinator epoch │
           │ int16   │ int16│             │ int16   │ int32             │
           └─────────┴──────┘             └─────────┴───────────────────┘

Later versions may only append fields, so that a newer version is parsed as this one.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptBatch
from headrace.model.ids import NO_EPOCH
from headrace.records.batch import BatchHeader
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Buffer
from headrace.records.record import checked_header, iter_records

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    """Control records that a partition can contain; consumers skip those of other types."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    type: ControlType
    coordinator_epoch: int

    @property
    def commits(self) -> bool:
        return self.type is ControlType.COMMIT


def encode_marker(marker: EndMarker) -> tuple[bytes, bytes]:
    """Returns key and value."""
    return _KEY.pack(_VERSION, marker.type), _VALUE.pack(_VERSION, marker.coordinator_epoch)


def decode_marker(key: bytes | None, value: bytes | None) -> EndMarker | None:
    """Returns the marker, or None for a control record of another type."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch("a control record without a type")
    version, type_number = _KEY.unpack_from(key)
    if version < _VERSION:
        raise CorruptBatch(f"control record version {version}")
    if type_number not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch("an end-of-transaction marker without a coordinator epoch")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < _VERSION:
        raise CorruptBatch(f"end-of-transaction marker version {version}")
    return EndMarker(ControlType(type_number), coordinator_epoch)


def read_marker(batch: Buffer, header: BatchHeader | None = None) -> EndMarker | None:
    """Returns the marker in a control batch; None if compaction emptied it or it is of another type."""
    header = checked_header(batch, header)
    if not header.is_control:
        raise CorruptBatch("a marker stands in a control batch, this batch is none")
    for record in iter_records(batch, header):
        return decode_marker(record.key, record.value)
    return None


def build_marker_batch(
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytes:
    """Returns the control batch with one record that ends a producer's transaction. It takes one offset."""
    key, value = encode_marker(marker)
    return build_batch(
        [NewRecord(timestamp, key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )
