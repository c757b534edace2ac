"""The offsets that groups have committed, and those that wait for a transaction to end.

Decides nothing about members: whether somebody may commit is asked of the group's family. `apply` and its kin alone
change, live and at recovery alike.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.core.group.records import CommittedOffset, OffsetKey
from headrace.model.ids import TopicPartition

NO_PRODUCER = -1

OffsetsOfGroup = dict[TopicPartition, CommittedOffset]


class OffsetCommitted(NamedTuple):
    key: OffsetKey
    committed: CommittedOffset
    producer_id: int = NO_PRODUCER  # else it counts once this producer's transaction is committed


class OffsetForgotten(NamedTuple):
    key: OffsetKey


OffsetFact = OffsetCommitted | OffsetForgotten


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, OffsetsOfGroup] = {}
        self._pending: dict[int, dict[str, OffsetsOfGroup]] = {}  # by producer

    # Asking

    def holds(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._groups.get(group_id, {})

    def has_pending(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._pending.values())

    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        """Partitions for which an open transaction brings a new offset."""
        waiting = (groups[group_id] for groups in self._pending.values() if group_id in groups)
        return frozenset(partition for offsets in waiting for partition in offsets)

    # Changing

    def apply(self, fact: OffsetFact, record_offset: int) -> None:
        if isinstance(fact, OffsetCommitted):
            self.put(fact.key, CommittedOffset(*fact.committed[:-1], record_offset), fact.producer_id)
        else:
            self.forget(fact.key)

    def put(self, key: OffsetKey, committed: CommittedOffset, producer_id: int = NO_PRODUCER) -> None:
        groups = self._groups if producer_id == NO_PRODUCER else self._pending.setdefault(producer_id, {})
        group_id, place = key
        offsets = groups.get(group_id)
        if offsets is None:
            groups[group_id] = {place: committed}
        else:
            offsets[place] = committed

    def forget(self, key: OffsetKey) -> None:
        offsets = self._groups.get(key.group_id)
        if offsets is not None:
            offsets.pop(key.place, None)
            if not offsets:
                del self._groups[key.group_id]

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            for partition, waiting in offsets.items() if committed else ():
                known = self._groups.get(group_id, {}).get(partition)
                # Somebody may have committed outside the transaction while it was open: the later record counts.
                if known is None or known.record_offset < waiting.record_offset:
                    self.put(OffsetKey(group_id, partition), waiting)
