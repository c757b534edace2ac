"""Positions in partitions, and how a streaming query's checkpoint keeps them.

The JSON is that of Spark's Kafka connector, `{"orders": {"0": 42}}`, with two fields named as no topic can be:

    "#ids"    the id of each topic, so that a topic deleted and made again is not taken for the old one
    "#from"   where the batch that ends here starts in the partitions that its start does not name

The second is why a query can start at "latest" and lose nothing: the start of its first batch is written down with the
batch's end, before any row is read. What Spark asks for as the initial offset is only a marker. Pure.
"""

from collections.abc import Mapping
from typing import Any

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
    """As the connector has it, for progress reports."""
    return _by_topic(positions)


def _by_topic(positions: Mapping[TopicPartition, int]) -> Json:
    grouped: Json = {}
    for partition in sorted(positions):
        grouped.setdefault(partition.topic, {})[str(partition.partition)] = positions[partition]
    return grouped


def is_marker(offset: Json) -> bool:
    return INITIAL in offset


def ends_of(offset: Json) -> Positions:
    """The positions of an offset that may also come from the connector's checkpoint."""
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
