"""Offsets that groups have committed, and pending offsets of open transactions.

Only `apply`, `put`, `forget` and `transaction_ended` change state, live and at recovery alike. Whether a member may
commit is checked by the group manager. No I/O.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.core.group.records import OffsetAndMetadata, OffsetKey
from headrace.model.ids import TopicPartition

NO_PRODUCER = -1
# Offsets that one decision removes when they expire or their topic is deleted: some 50 ms of the event loop. No client
# waits for that, and removing half a million at once would take longer than the broker's session.
REMOVED_MAX = 5_000

OffsetsOfGroup = dict[TopicPartition, OffsetAndMetadata]


class OffsetCommitted(NamedTuple):
    key: OffsetKey
    committed: OffsetAndMetadata
    producer_id: int = NO_PRODUCER  # otherwise pending until this producer's transaction commits


class OffsetForgotten(NamedTuple):
    key: OffsetKey


class TopicOffsetsRemoved(NamedTuple):
    """Offsets of a topic were removed; `topic_ids` are the topic ids of the remaining ones. Not written to the log."""

    topic: str
    topic_ids: frozenset[bytes]


OffsetFact = OffsetCommitted | OffsetForgotten | TopicOffsetsRemoved
IsOutdated = Callable[[OffsetAndMetadata], bool]


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, OffsetsOfGroup] = {}
        self._pending: dict[int, dict[str, OffsetsOfGroup]] = {}  # by producer id
        self._producers: dict[str, set[int]] = {}  # by group, the producers with pending offsets
        # Topic ids of a topic's offsets, NO_TOPIC_ID included. May contain ids that no offset has any more.
        self._topic_ids: dict[str, set[bytes]] = {}

    # Queries

    def holds(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def of_group(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._groups.get(group_id, {})

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._producers

    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        """Returns the partitions for which an open transaction has pending offsets."""
        return frozenset(partition for offsets in self._pending_of(group_id) for partition in offsets)

    def pending(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        """Yields the pending offsets of open transactions."""
        for offsets in self._pending_of(group_id):
            yield from offsets.items()

    def topics_with_ids(self) -> Mapping[str, Collection[bytes]]:
        """Returns, by topic, the topic ids that its offsets may have."""
        return self._topic_ids

    def removal(self, topic: str, is_outdated: IsOutdated) -> list[OffsetFact]:
        """Returns the records that remove the outdated offsets of a topic, committed and pending.

        A tombstone removes every offset of a group's partition, so none is written while one of these offsets is not
        outdated. An outdated pending offset beside a newer one never takes effect, since the later record wins. A
        result of at least REMOVED_MAX records may be incomplete: see `GroupCoordinatorShard.topic_deleted`.
        """
        if topic not in self._topic_ids:
            return []
        facts: list[OffsetFact] = []
        remaining: set[bytes] = set()
        for group_id in {**self._groups, **self._producers}:
            for place, found in self._by_place(group_id, topic).items():
                if all(map(is_outdated, found)):
                    facts.append(OffsetForgotten(OffsetKey(group_id, place)))
                else:
                    remaining.update(committed.topic_id for committed in found)
            if len(facts) >= REMOVED_MAX:
                return facts
        return [*facts, TopicOffsetsRemoved(topic, frozenset(remaining))]

    def _by_place(self, group_id: str, topic: str) -> dict[TopicPartition, list[OffsetAndMetadata]]:
        found: dict[TopicPartition, list[OffsetAndMetadata]] = {}
        for offsets in (self.of_group(group_id), *self._pending_of(group_id)):
            for place, committed in offsets.items():
                if place.topic == topic:
                    found.setdefault(place, []).append(committed)
        return found

    def _pending_of(self, group_id: str) -> list[OffsetsOfGroup]:
        return [self._pending[one][group_id] for one in self._producers.get(group_id, ())]

    # Changes

    def apply(self, fact: OffsetFact, record_offset: int) -> None:
        if isinstance(fact, OffsetCommitted):
            self.put(fact.key, OffsetAndMetadata(*fact.committed[:-1], record_offset), fact.producer_id)
        elif isinstance(fact, OffsetForgotten):
            self.forget(fact.key)
        elif fact.topic_ids:
            self._topic_ids[fact.topic] = set(fact.topic_ids)
        else:
            self._topic_ids.pop(fact.topic, None)

    def put(self, key: OffsetKey, committed: OffsetAndMetadata, producer_id: int = NO_PRODUCER) -> None:
        group_id, place = key
        if producer_id == NO_PRODUCER:
            groups = self._groups
        else:
            groups = self._pending.setdefault(producer_id, {})
            self._producers.setdefault(group_id, set()).add(producer_id)
        offsets = groups.get(group_id)
        if offsets is None:
            groups[group_id] = {place: committed}
        else:
            offsets[place] = committed
        topic_ids = self._topic_ids.get(place.topic)
        if topic_ids is None:
            self._topic_ids[place.topic] = {committed.topic_id}
        elif committed.topic_id not in topic_ids:
            topic_ids.add(committed.topic_id)

    def forget(self, key: OffsetKey) -> None:
        """Removes a committed offset. As in Kafka, a tombstone also removes the partition's pending offsets."""
        _remove(self._groups, key)
        for producer_id in list(self._producers.get(key.group_id, ())):
            groups = self._pending[producer_id]
            if _remove(groups, key):
                self._forget_producer(key.group_id, producer_id)
            if not groups:
                del self._pending[producer_id]

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            self._forget_producer(group_id, producer_id)
            for partition, waiting in offsets.items() if committed else ():
                known = self._groups.get(group_id, {}).get(partition)
                # An offset may have been committed outside the transaction while it was open: the later record wins.
                if known is None or known.record_offset < waiting.record_offset:
                    self.put(OffsetKey(group_id, partition), waiting)

    def _forget_producer(self, group_id: str, producer_id: int) -> None:
        producers = self._producers[group_id]
        producers.discard(producer_id)
        if not producers:
            del self._producers[group_id]


def _remove(groups: dict[str, OffsetsOfGroup], key: OffsetKey) -> bool:
    """Removes an offset. Returns whether the group has no offsets left here."""
    offsets = groups.get(key.group_id)
    if offsets is None:
        return False
    offsets.pop(key.place, None)
    if not offsets:
        del groups[key.group_id]
    return not offsets
