"""Corrects transaction markers with one flipped bit, and reports transactions whose marker may be unreadable.

A marker has a fixed length and takes one offset. If one bit of it has flipped, the CRC identifies the bit: two
different contents of this length with valid checksums differ in at least six bits, so that no other marker is within
one bit. The corrected marker ends its transaction as if it were readable. It is not served, and not rewritten.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import CorruptBatch
from headrace.records.batch import CRC_START, LENGTH_OVERHEAD, BatchHeader, batch_crc, parse_header
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_verifier import FORMAT_VERSION, CorruptRange

if TYPE_CHECKING:
    from headrace.records.control import EndMarker

log = logging.getLogger(__name__)

_OFFSET_BYTES, _LENGTH_END, _MAGIC_AT, _CRC_AT = 8, 12, 16, 17


@cache
def _marker_bytes() -> int:
    from headrace.records.control import ControlType, EndMarker, build_marker_batch

    return len(build_marker_batch(EndMarker(ControlType.COMMIT, 0), producer_id=0, producer_epoch=0, timestamp=0))


def corrected_marker(segment: LogSegment, hole: CorruptRange) -> "tuple[BatchHeader, EndMarker] | None":
    """Returns the marker in the corrupt range, if a single flipped bit makes it unreadable; else None."""
    size = _marker_bytes()
    if (hole.end - hole.position, hole.next_offset - hole.base_offset) != (size, 1):
        return None
    batch = bytearray(segment.file.read(hole.position, size))
    if len(batch) < size:
        return None
    # The position of the batch determines the bytes without a checksum. If they differ, they count as the flipped ones.
    expected = hole.base_offset.to_bytes(_OFFSET_BYTES) + (size - LENGTH_OVERHEAD).to_bytes(_LENGTH_END - _OFFSET_BYTES)
    batch[:_LENGTH_END] = expected
    batch[_MAGIC_AT] = FORMAT_VERSION
    return next((marker for marker in map(_marker_in, _within_one_bit(batch)) if marker is not None), None)


def _within_one_bit(batch: bytearray) -> Iterator[bytearray]:
    yield batch
    for byte in (*range(_CRC_AT, CRC_START), *range(CRC_START, len(batch))):
        for bit in range(8):
            batch[byte] ^= 1 << bit
            yield batch
            batch[byte] ^= 1 << bit


def _marker_in(batch: bytearray) -> "tuple[BatchHeader, EndMarker] | None":
    header = parse_header(batch)
    if batch_crc(batch) != header.crc or not (header.is_control and header.is_transactional):
        return None
    from headrace.records.control import read_marker

    try:
        marker = read_marker(memoryview(bytes(batch)), header)
    except CorruptBatch:
        return None
    return None if marker is None else (header, marker)


class DoubtfulTransaction(NamedTuple):
    """An open transaction whose marker may be in an unreadable range."""

    producer_id: int
    epoch: int
    first_offset: int
    lost: list[CorruptRange]  # the ranges after its first record


def doubtful_transactions(segments: Iterable[LogSegment], states: ProducerStateManager) -> list[DoubtfulTransaction]:
    """Returns the doubtful transactions in the order of their first offsets."""
    holes = [hole for segment in segments for hole in segment.holes]
    found = []
    for entry in states.active() if holes else ():
        first = entry.txn_first_offset
        lost = [] if first is None else [hole for hole in holes if hole.next_offset > first]
        if first is not None and lost:
            found.append(DoubtfulTransaction(entry.producer_id, entry.epoch, first, lost))
    return sorted(found, key=lambda one: one.first_offset)


def report_doubtful(directory: str, segments: Sequence[LogSegment], states: ProducerStateManager) -> None:
    """Logs every doubtful transaction, and what an operator can do."""
    for one in doubtful_transactions(segments, states):
        topic, _, partition = directory.rpartition("/")[2].rpartition("-")
        log.error(
            "%s-%s: the marker that ended the transaction of producer id %d (epoch %d) at offset %d may be in the "
            "unreadable offsets %s. If so, read_committed consumers wait at offset %d, and the next marker of this "
            "producer decides about all its records from there on. To end the transaction as aborted: headrace "
            "transactions abort --topic %s --partition %s --start %d",
            topic,
            partition,
            one.producer_id,
            one.epoch,
            one.first_offset,
            _ranges(one.lost),
            one.first_offset,
            topic,
            partition,
            one.first_offset,
        )


def _ranges(holes: Iterable[CorruptRange]) -> str:
    return ", ".join(f"{hole.base_offset} to {hole.next_offset - 1}" for hole in holes)
