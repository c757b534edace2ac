"""What a segment's index files say about it, where that fits its batches: saves reading all of them at a start."""

from headrace.records.batch import BatchHeader
from headrace.storage.segment import Segment
from headrace.storage.segment_check import header_at, tells_the_time


def load_indexes(segment: Segment) -> bool:
    """From their files, with what they say about the segment; False where they do not fit the batches."""
    if not (segment.offset_index.load() and segment.time_index.load()):
        return False
    last = segment.offset_index.last
    tail = list(segment.headers(last[1] if last else 0))
    if not tail or (last is not None and tail[0][1].last_offset != segment.base_offset + last[0]):
        return False
    if not _ascend(segment.base_offset, tail):
        return False
    segment.next_offset, segment.last_epoch = tail[-1][1].next_offset, tail[-1][1].leader_epoch
    first = tail[0][1] if last is None else header_at(segment.file, 0)
    if first is None or not _load_times(segment, tail):
        return False
    segment.first_timestamp, segment.first_epoch = first.max_timestamp, first.leader_epoch
    return True


def _ascend(base_offset: int, tail: list[tuple[int, BatchHeader]]) -> bool:
    """Whether the offsets do: no checksum covers the one that a batch begins with."""
    for _, header in tail:
        if header.base_offset < base_offset:
            return False
        base_offset = header.next_offset
    return True


def _load_times(segment: Segment, tail: list[tuple[int, BatchHeader]]) -> bool:
    """The highest timestamp, from the closing entry of the time index; usually of a batch at the end."""
    youngest = segment.time_index.last
    if youngest is not None:
        offset = segment.base_offset + youngest[1]
        for number, (_, header) in enumerate(tail):
            if header.base_offset <= offset <= header.last_offset and header.max_timestamp == youngest[0]:
                segment.max_timestamp, segment.max_timestamp_offset = youngest[0], offset
                segment.note_times(tail[number:])
                return True
        if not tells_the_time(segment, youngest):
            return False
    segment.refresh_max_timestamp()
    return True
