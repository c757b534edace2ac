"""History of each group's last rebalances: cause, joined and departed members, pause per member.

Records have a kind that Kafka does not define; Kafka's tools skip unknown kinds. Slots of the key are reused after
KEPT rebalances, so compaction removes the older ones.

    key     int16 kind, string group, int16 slot          value   int16 version, JSON
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime, Decision, Timer
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.model import MemberState, Rebalance
from headrace.core.group.group_manager import Committer, OffsetExpirationCondition
from headrace.core.group.model import ClassicGroup, GroupListing, GroupState
from headrace.model.errors import CorruptLog

HISTORY_KIND = 0x4852  # "HR": far from the kinds that Kafka counts up from 0
_VERSION = 0
_INT16 = Struct(">h")

# A day of hourly deployments, and some more.
KEPT = 32
NOT_ENDED = -1


class Rebalanced(NamedTuple):
    group_id: str
    number: int  # the generation or group epoch that it leads to
    cause: str
    began_ms: int  # wall time
    ended_ms: int = NOT_ENDED
    members_before: tuple[str, ...] = ()
    members_after: tuple[str, ...] = ()
    pauses_ms: Mapping[str, int] = {}
    is_written: bool = True  # updates that only add a member's pause are not written until the rebalance ends

    @property
    def is_over(self) -> bool:
        return self.ended_ms >= 0


class RebalanceForgotten(NamedTuple):
    group_id: str
    slot: int


class History:
    """A group manager without groups: it has records of its own, and handles no requests."""

    name = "history"
    record_kinds = frozenset({HISTORY_KIND})
    fact_types: tuple[type, ...] = (Rebalanced, RebalanceForgotten)

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, Rebalanced]] = {}  # by slot

    def of_group(self, group_id: str) -> list[Rebalanced]:
        return sorted(self._groups.get(group_id, {}).values(), key=lambda row: row.number)

    def under_way(self, group_id: str) -> Rebalanced | None:
        rows = self.of_group(group_id)
        return rows[-1] if rows and not rows[-1].is_over else None

    # Records of a decision

    def of_classic(
        self, before: ClassicGroup | None, after: ClassicGroup, cause: str, now: CoordinatorTime
    ) -> Iterable[Rebalanced]:
        row = self.under_way(after.group_id)
        if cause:
            yield from _overtaken(row, now)
            number = (before.generation if before is not None else 0) + 1
            members = tuple(before.members) if before is not None else ()
            row = Rebalanced(after.group_id, number, cause, now.wall_ms, members_before=members)
        if row is None:
            return
        row = row._replace(members_after=tuple(after.members))
        if after.state in (GroupState.STABLE, GroupState.EMPTY):
            # No earlier member consumes from the start of the rebalance until the group leader has assigned partitions.
            stayed = [member for member in row.members_before if member in after.members]
            pause_ms = now.wall_ms - row.began_ms
            yield row._replace(ended_ms=now.wall_ms, pauses_ms=dict.fromkeys(stayed, pause_ms))
        elif cause:
            yield row

    def of_modern(
        self, before: ConsumerGroup, after: ConsumerGroup, begun: Rebalance | None, now: CoordinatorTime
    ) -> Iterable[Rebalanced]:
        row = self.under_way(after.group_id)
        if begun is not None:
            yield from _overtaken(row, now)
            row = Rebalanced(after.group_id, begun.epoch, begun.cause, now.wall_ms, members_before=begun.members_before)
        if row is None:
            return
        # Members continue to consume the partitions that they keep. Only members that get or revoke partitions are
        # paused.
        pauses = dict(row.pauses_ms)
        for member_id in after.subscriptions:
            old, new_holding = before.holding(member_id), after.holding(member_id)
            has_moved = old.state is not MemberState.STABLE or old.assigned != new_holding.assigned
            if old != new_holding and has_moved and after.is_settled(member_id):
                pauses[member_id] = now.wall_ms - row.began_ms
        ended_ms = now.wall_ms if after.state in ("Stable", "Empty") else NOT_ENDED
        new = row._replace(members_after=tuple(sorted(after.subscriptions)), pauses_ms=pauses, ended_ms=ended_ms)
        if begun is not None or new != row:
            yield new._replace(is_written=begun is not None or new.is_over)

    # Group manager interface

    def encode(self, fact: Rebalanced | RebalanceForgotten) -> CoordinatorRecord | None:
        if isinstance(fact, RebalanceForgotten):
            return CoordinatorRecord(_key(*fact), None)
        return encode(fact) if fact.is_written else None

    def apply(self, fact: Rebalanced | RebalanceForgotten, offset: int) -> None:
        if isinstance(fact, Rebalanced):
            self._groups.setdefault(fact.group_id, {})[fact.number % KEPT] = fact._replace(is_written=True)
            return
        rows = self._groups.get(fact.group_id, {})
        rows.pop(fact.slot, None)
        if not rows:
            self._groups.pop(fact.group_id, None)

    def replay(self, kind: int, record: CoordinatorRecord, offset: int) -> None:
        self.apply(decode(record), offset)

    def loaded(self, now: CoordinatorTime) -> Decision[Any]:
        return Decision()

    def expire(self, timer: str, now: CoordinatorTime) -> Decision[Any]:
        return Decision()

    def holds(self, group_id: str) -> bool:
        return False

    def is_empty(self, group_id: str) -> bool:
        return True

    def listings(self) -> Iterable[GroupListing]:
        return ()

    def check_commit(self, group_id: str, committer: Committer, now: CoordinatorTime) -> Sequence[Timer]:
        return ()

    def check_fetch(self, group_id: str, committer: Committer) -> None:
        """Checks nothing: the history has no offsets."""

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        return None

    def offsets_rule(self, group_id: str) -> OffsetExpirationCondition:
        return OffsetExpirationCondition()

    def forget(self, group_id: str) -> Sequence[Any]:
        return [RebalanceForgotten(group_id, slot) for slot in self._groups.get(group_id, {})]


def _overtaken(row: Rebalanced | None, now: CoordinatorTime) -> Iterable[Rebalanced]:
    """Ends a rebalance that the next one interrupts."""
    if row is not None:
        yield row._replace(ended_ms=now.wall_ms, is_written=True)


# Encoding


def encode(row: Rebalanced) -> CoordinatorRecord:
    value = json.dumps(
        {
            "number": row.number,
            "cause": row.cause,
            "began_ms": row.began_ms,
            "ended_ms": row.ended_ms,
            "members_before": row.members_before,
            "members_after": row.members_after,
            "pauses_ms": dict(row.pauses_ms),
        },
        separators=(",", ":"),
    )
    return CoordinatorRecord(_key(row.group_id, row.number % KEPT), _INT16.pack(_VERSION) + value.encode())


def _key(group_id: str, slot: int) -> bytes:
    name = group_id.encode()
    return _INT16.pack(HISTORY_KIND) + _INT16.pack(len(name)) + name + _INT16.pack(slot)


def decode(record: CoordinatorRecord) -> Rebalanced | RebalanceForgotten:
    """Decodes a record. Raises CorruptLog if it is malformed."""
    try:
        (length,) = _INT16.unpack_from(record.key, 2)
        group_id = record.key[4 : 4 + length].decode()
        (slot,) = _INT16.unpack_from(record.key, 4 + length)
        if record.value is None:
            return RebalanceForgotten(group_id, slot)
        fields = json.loads(record.value[_INT16.size :])
        return Rebalanced(
            group_id,
            fields["number"],
            fields["cause"],
            fields["began_ms"],
            fields["ended_ms"],
            tuple(fields["members_before"]),
            tuple(fields["members_after"]),
            fields["pauses_ms"],
        )
    except (StructError, ValueError, KeyError, TypeError) as error:
        raise CorruptLog(f"a rebalance in the offsets topic cannot be read: {error}") from None
