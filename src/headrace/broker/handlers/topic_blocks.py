"""Encoded topics for Metadata, kept as long as neither the topic nor the brokers change.

The image replaces a TopicImage whenever it changes it, so a block is good while its topic is the same object.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace.broker.handlers.partition_rows import View, partition_rows
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import BrokerInfo, TopicImage
from headrace.core.internal_topics import INTERNAL_TOPICS
from headrace.protocol.metadata import NO_ERRORS, encode_partitions, encode_topic, partition_layout

# Blocks of deleted topics are dropped when this many more are kept than there are topics.
SPARE_BLOCKS_MAX = 1000


class Block(NamedTuple):
    """One encoded topic, and how often each error code stands in it."""

    encoded: bytes
    errors: Mapping[int, int] = NO_ERRORS


class Kept(NamedTuple):
    topic: TopicImage
    block: Block


class Joined(NamedTuple):
    revision: int
    topic_count: int
    blocks: bytes
    errors: Mapping[int, int]


class TopicBlocks:
    """All blocks of one version, one listener and one bit field of authorized operations.

    The image is handed in and not kept, so that blocks never outlive it.
    """

    def __init__(self, version: int, listener: str, operations: int) -> None:
        self._version = version
        self._listener = listener
        self._operations = operations
        self._brokers: tuple[BrokerInfo, ...] = ()
        self._lost: frozenset[int] = frozenset()
        self._view = View(frozenset(), frozenset())
        self._blocks: dict[str, Kept] = {}
        self._all: Joined | None = None

    def of(self, topic: TopicImage) -> Block:
        kept = self._blocks.get(topic.name)
        if kept is None or kept.topic is not topic:
            kept = self._blocks[topic.name] = Kept(topic, self._encode(topic))
        return kept.block

    def all(self, image: ClusterImage) -> Joined:
        """Every topic there is, already joined."""
        if self._all is None or self._all.revision != image.revision:
            blocks = [self.of(topic) for topic in image.topics.values()]
            self._all = Joined(image.revision, len(blocks), *joined(blocks))
        return self._all

    def follow_brokers(self, image: ClusterImage, lost: frozenset[int] = frozenset()) -> None:
        """Forget everything that was said about other brokers than there are now."""
        brokers = tuple(image.brokers.values())
        if brokers != self._brokers or lost != self._lost:
            self._brokers, self._lost = brokers, lost
            self._view = view_of(brokers, self._listener, lost)
            self._blocks.clear()
            self._all = None
        elif len(self._blocks) > len(image.topics) + SPARE_BLOCKS_MAX:
            self._blocks.clear()

    def _encode(self, topic: TopicImage) -> Block:
        rows = list(partition_rows(self._version, topic.partitions, self._view))
        encoded = encode_topic(
            self._version,
            topic.name,
            topic.topic_id,
            encode_partitions(partition_layout(self._version), rows),
            is_internal=topic.name in INTERNAL_TOPICS,
            operations=self._operations,
        )
        return Block(encoded, Counter(row.error for row in rows if row.error))


def joined(blocks: Collection[Block]) -> tuple[bytes, Mapping[int, int]]:
    """The blocks as a reply has them, and the errors in all of them."""
    errors: Counter[int] = Counter()
    for block in blocks:
        if block.errors:
            errors.update(block.errors)
    return b"".join([block.encoded for block in blocks]), errors


def view_of(brokers: tuple[BrokerInfo, ...], listener: str, lost: frozenset[int] = frozenset()) -> View:
    """`lost`: brokers that are probably dead, although their sessions last."""
    return View(
        frozenset(broker.node_id for broker in brokers),
        frozenset(
            broker.node_id
            for broker in brokers
            if broker.is_live and broker.node_id not in lost and any(one.name == listener for one in broker.endpoints)
        ),
    )
