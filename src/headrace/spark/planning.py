"""Which offsets a batch covers and which task reads which of them. Pure: numbers in, ranges out."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from headrace.spark.positions import Positions

# So few offsets are read in less time than Spark takes for one more task; of records of a megabyte they are a gigabyte.
PACKED_OFFSETS_MAX = 1000


class OffsetRange(NamedTuple):
    """start <= offset < end of one partition; compaction and markers leave gaps, so it is a bound, not a count."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    ranges = [OffsetRange(partition, starts[partition], ends[partition]) for partition in sorted(ends)]
    return [one for one in ranges if one.size > 0]


def limited(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], rows_max: int) -> Positions:
    """Ends that take at most about `rows_max` offsets, each partition's share in proportion to its backlog.

    A partition with a backlog gets at least one, so that a busy neighbour never starves it.
    """
    backlog = {partition: max(ends[partition] - starts[partition], 0) for partition in ends}
    total = sum(backlog.values())
    if total <= rows_max:
        return dict(ends)
    return {
        partition: starts[partition] + min(waiting, max(waiting * rows_max // total, 1)) if waiting else ends[partition]
        for partition, waiting in backlog.items()
    }


def split(
    ranges: Sequence[OffsetRange], *, parts_min: int | None = None, rows_max: int | None = None
) -> list[OffsetRange]:
    """The ranges of the tasks: cut so that none has more than `rows_max` offsets, and into `parts_min` or so."""
    pieces = [piece for one in ranges for piece in _cut(one, -(-one.size // rows_max) if rows_max else 1)]
    if parts_min is None or len(pieces) >= parts_min:
        return pieces
    total = sum(piece.size for piece in pieces)
    return [part for piece in pieces for part in _cut(piece, round(piece.size * parts_min / total))]


def tasks(
    ranges: Sequence[OffsetRange], *, parts_min: int | None = None, rows_max: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """Who reads what. Large ranges are cut as `split` does; small neighbours are one task's work, in their order."""
    pieces = split(ranges, parts_min=parts_min, rows_max=rows_max)
    if parts_min is not None:  # who names a number of tasks wants them
        return [(piece,) for piece in pieces]
    packs: list[list[OffsetRange]] = []
    room = 0
    for piece in pieces:
        if piece.size > room:
            packs.append([])
            room = min(rows_max or PACKED_OFFSETS_MAX, PACKED_OFFSETS_MAX)
        packs[-1].append(piece)
        room -= piece.size
    return [tuple(pack) for pack in packs]


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """As equal as whole offsets allow; never an empty one."""
    parts = max(1, min(parts, whole.size))
    edges = [whole.start + whole.size * index // parts for index in range(parts + 1)]
    return [OffsetRange(whole.partition, low, high) for low, high in pairwise(edges)]
