"""Offsets of a read: positions as JSON, and the ranges that tasks read. Pure; performs no I/O.

The JSON is that of Spark's Kafka connector, `{"orders": {"0": 42}}`, with two fields whose names no topic can have:

    "#ids"    the id of each topic, so that a recreated topic is not mistaken for the old one
    "#from"   where the batch that ends here starts in the partitions that its start does not name

The second allows a query to start at "latest" without losing records: the start of its first batch is stored with the
batch's end before any row is read. The initial offset that Spark requests is only a marker.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition

Positions = dict[TopicPartition, int]
Json = dict[str, Any]

IDS, FROM, INITIAL = "#ids", "#from", "#initial"
MARKER: Json = {INITIAL: 1}


def encode(ends: Mapping[TopicPartition, int], ids: Mapping[str, str], starts: Mapping[TopicPartition, int]) -> Json:
    encoded = _by_topic(ends)
    encoded[IDS] = dict(sorted(ids.items()))
    if starts:
        encoded[FROM] = _by_topic(starts)
    return encoded


def plain(positions: Mapping[TopicPartition, int]) -> Json:
    """Returns the positions in the connector's format, for progress reports."""
    return _by_topic(positions)


def _by_topic(positions: Mapping[TopicPartition, int]) -> Json:
    grouped: Json = {}
    for partition in sorted(positions):
        grouped.setdefault(partition.topic, {})[str(partition.partition)] = positions[partition]
    return grouped


def is_marker(offset: Json) -> bool:
    return INITIAL in offset


def ends_of(offset: Json) -> Positions:
    """Returns the end positions of an offset, which may also be from a checkpoint of the connector."""
    return _positions({name: ones for name, ones in offset.items() if not name.startswith("#")})


def starts_in(offset: Json) -> Positions:
    return _positions(offset.get(FROM, {}))


def ids_of(offset: Json) -> dict[str, str]:
    return dict(offset.get(IDS, {}))


def _positions(by_topic: Mapping[str, Mapping[str, int]]) -> Positions:
    try:
        return {
            TopicPartition(topic, int(partition)): int(position)
            for topic, ones in by_topic.items()
            for partition, position in ones.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InvalidConfig(
            f"the checkpoint holds {by_topic!r} where offsets should be: it belongs to another source, or is corrupt"
        ) from None


# Reading this many offsets takes less time than one more Spark task; with records of a megabyte they are a gigabyte.
PACKED_OFFSETS_MAX = 1000


class OffsetRange(NamedTuple):
    """start <= offset < end of one partition. Compaction and markers leave gaps, so its size is an upper bound."""

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
    """Returns ends that cover about `rows_max` offsets, each partition's share proportional to its backlog.

    A partition with a backlog gets at least one offset, so that a busy partition never starves it.
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
    """Splits ranges so that none has more than `rows_max` offsets, and into about `parts_min` parts."""
    pieces = [piece for one in ranges for piece in _cut(one, -(-one.size // rows_max) if rows_max else 1)]
    if parts_min is None or len(pieces) >= parts_min:
        return pieces
    total = sum(piece.size for piece in pieces)
    return [part for piece in pieces for part in _cut(piece, round(piece.size * parts_min / total))]


def tasks(
    ranges: Sequence[OffsetRange], *, parts_min: int | None = None, rows_max: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """Assigns ranges to tasks: large ones are split as by `split`, adjacent small ones share a task, in order."""
    pieces = split(ranges, parts_min=parts_min, rows_max=rows_max)
    if parts_min is not None:  # an explicit number of tasks is not reduced by sharing
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
    """Splits as evenly as whole offsets allow; no part is empty."""
    parts = max(1, min(parts, whole.size))
    edges = [whole.start + whole.size * index // parts for index in range(parts + 1)]
    return [OffsetRange(whole.partition, low, high) for low, high in pairwise(edges)]
