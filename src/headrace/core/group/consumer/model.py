"""Value types of consumer groups: subscriptions, assignments, requests, and the records that the log keeps.

A record value is one record of `__consumer_offsets`; None in place of its content is a tombstone.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from headrace.core.group.group_manager import timer_name

FAMILY = "consumer"

Partitions = Mapping[UUID, frozenset[int]]  # contains no empty set, so that equal assignments are equal mappings
NO_PARTITIONS: Partitions = {}

JOINING = 0
LEAVING = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2  # a static member that leaves temporarily


class MemberState(IntEnum):
    """Reconciliation state of a member; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED = 1  # it still has partitions to revoke
    UNRELEASED = 2  # it waits for partitions that other members have not released
    UNKNOWN = 127


class ClassicMemberMetadata(NamedTuple):
    """Data that a consumer group keeps of a classic-protocol member."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Subscription(NamedTuple):
    """A member's subscription and other properties from its heartbeats."""

    topics: tuple[str, ...] = ()  # sorted, without duplicates
    regex: str | None = None
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None


class CurrentAssignment(NamedTuple):
    """A member's current assignment, its epochs and its reconciliation state."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    def moved_to(self, epoch: int) -> "CurrentAssignment":
        """Returns the assignment at another epoch. The previous epoch stays valid, since the response may get lost."""
        return self if epoch == self.epoch else self._replace(epoch=epoch, previous_epoch=self.epoch)


NEWCOMER = CurrentAssignment()


class GroupEpoch(NamedTuple):
    """The group epoch. It rises whenever a new assignment is needed."""

    group_id: str
    epoch: int | None
    topics_hash: int = 0


class MemberSubscribed(NamedTuple):
    group_id: str
    member_id: str
    subscription: Subscription | None


class TargetEpoch(NamedTuple):
    """The group epoch that the target assignment was computed for, and the wall time of that."""

    group_id: str
    epoch: int | None
    made_ms: int = 0


class TargetOf(NamedTuple):
    group_id: str
    member_id: str
    partitions: Partitions | None


class HoldingOf(NamedTuple):
    group_id: str
    member_id: str
    holding: CurrentAssignment | None


class ResolvedTopics(NamedTuple):
    """Topics that a regular expression matched, and the version of the topic names that it was matched against."""

    topics: frozenset[str]
    version: int


class RegexResolved(NamedTuple):
    group_id: str
    regex: str
    resolved: ResolvedTopics | None


class Rebalance(NamedTuple):
    """Cause of a new group epoch, for the rebalance history. Not written with the group's own records."""

    group_id: str
    epoch: int
    cause: str
    members_before: tuple[str, ...]
    members_after: tuple[str, ...]


ModernFact = GroupEpoch | MemberSubscribed | TargetEpoch | TargetOf | HoldingOf | RegexResolved | Rebalance


class ConsumerGroupConfig(NamedTuple):
    """Group configuration."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0  # minimal time between targets; 0: no minimum
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    may_upgrade: bool = True  # a classic group is upgraded when its first consumer-protocol member joins
    may_downgrade: bool = True  # and downgraded when the last one has left


class Heartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat request; null for what has not changed since the last one."""

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    classic: ClassicMemberMetadata | None = None  # set for a JoinGroup of a classic-protocol member

    @property
    def is_full(self) -> bool:
        """Returns whether the request has all fields: the response then has the whole assignment."""
        subscribed = self.topics is not None or self.regex is not None
        return subscribed and self.owned is not None and self.rebalance_timeout_ms != -1


class HeartbeatReply(NamedTuple):
    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assigned: Partitions | None  # None: as before


def session_timer(group_id: str, member_id: str) -> str:
    """Returns the timer that is due when the member's session times out."""
    return timer_name(FAMILY, "session", group_id, member_id)


def rebalance_timer(group_id: str, member_id: str) -> str:
    """Returns the timer that is due when the member has not revoked its partitions in time."""
    return timer_name(FAMILY, "rebalance", group_id, member_id)
