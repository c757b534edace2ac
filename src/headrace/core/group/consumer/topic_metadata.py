"""Topic metadata for consumer groups: ids, partition counts, racks, and the names that an expression matches.

A view of the metadata image. Caches its results until the image changes.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple, TypeVar
from uuid import UUID

from headrace.core.image.metadata_image import MetadataImage, TopicImage
from headrace.core.regex import matcher
from headrace.core.topic import INTERNAL_TOPICS

Key = TypeVar("Key")
Result = TypeVar("Result")

# Cached results while the image does not change. A cluster has fewer different subscriptions; but clients choose theirs
# freely, hence the limit. A missing result costs a pass over the topics.
RESULTS_MAX = 1024


class TopicView(NamedTuple):
    topic_id: UUID
    partitions: int
    racks: tuple[frozenset[str], ...]  # of each partition; empty where no broker has a rack


class Topics:
    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._revision = -1
        self._names: frozenset[str] = frozenset()
        self._names_version = 0
        self._views: dict[str, TopicView] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._hashes: dict[frozenset[str], int] = {}

    def get(self, name: str) -> TopicView | None:
        self._refresh()
        view = self._views.get(name)
        if view is None:
            topic = self._image.topics.get(name)
            if topic is None:
                return None
            view = self._views[name] = self._view(topic)
        return view

    def name_of(self, topic_id: UUID) -> str | None:
        return self._image.topic_ids.get(topic_id)

    @property
    def names_version(self) -> int:
        """Returns a version that changes when a topic is created or deleted."""
        self._refresh()
        return self._names_version

    def matching(self, regex: str) -> frozenset[str]:
        self._refresh()
        found = self._matches.get(regex)
        if found is None:
            matches = matcher(regex)
            # Regex subscriptions never match internal topics, as in Kafka.
            found = frozenset(name for name in self._names if name not in INTERNAL_TOPICS and matches(name))
            _keep(self._matches, regex, found)
        return found

    def hash_of(self, names: frozenset[str]) -> int:
        """Returns a hash of all topic properties that an assignment depends on; 0 for no topics."""
        self._refresh()
        known = self._hashes.get(names)
        if known is None:
            known = self._hash(names)
            _keep(self._hashes, names, known)
        return known

    def _hash(self, names: frozenset[str]) -> int:
        digest = blake2b(digest_size=8)
        found = 0
        for name in sorted(names):
            view = self.get(name)
            if view is not None:
                found += 1
                racks = ";".join(",".join(sorted(racks)) for racks in view.racks)
                digest.update(f"{name}/{view.topic_id}/{view.partitions}/{racks}\n".encode())
        return int.from_bytes(digest.digest(), "big", signed=True) if found else 0

    def _refresh(self) -> None:
        if self._image.revision == self._revision:
            return
        self._revision = self._image.revision
        self._views.clear()
        self._hashes.clear()
        names = frozenset(self._image.topics)
        if names != self._names:
            self._names, self._names_version = names, self._revision
            self._matches.clear()

    def _view(self, topic: TopicImage) -> TopicView:
        racks_of: Mapping[int, str] = {
            broker.node_id: broker.rack for broker in self._image.brokers.values() if broker.rack
        }
        racks = tuple(
            frozenset(racks_of[node] for node in state.replicas if node in racks_of) for state in topic.partitions
        )
        return TopicView(topic.topic_id, len(topic.partitions), racks if racks_of else ())


def _keep(results: dict[Key, Result], key: Key, result: Result) -> None:
    """Caches the result; evicts the oldest one if there are too many."""
    if len(results) >= RESULTS_MAX:
        del results[next(iter(results))]
    results[key] = result
