"""The nouns of a consumer group: what a member says of itself, what it holds, and the facts that the log keeps.

A fact is one record of `__consumer_offsets`; None in the place of its content forgets what was said before.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from headrace.core.group.group_manager import timer_name

FAMILY = "consumer"

Partitions = Mapping[UUID, frozenset[int]]  # never holds an empty set, so that equal means equal
NO_PARTITIONS: Partitions = {}

JOINING = 0
LEAVING = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2  # a static member that means to come back


class MemberState(IntEnum):
    """Where a member stands on the way to its target; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED = 1  # it still has partitions that it must give up
    UNRELEASED = 2  # it waits for partitions that others have not given up yet
    UNKNOWN = 127


class ClassicMemberMetadata(NamedTuple):
    """What a member that speaks the classic protocol brought along when its group changed to the new one."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Subscription(NamedTuple):
    """What a member says of itself."""

    topics: tuple[str, ...] = ()  # sorted, each once
    regex: str | None = None
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None


class CurrentAssignment(NamedTuple):
    """What a member may use now, and how far it has come."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    def moved_to(self, epoch: int) -> "CurrentAssignment":
        """The member enters another epoch; the one before stays good, since our answer may get lost."""
        return self if epoch == self.epoch else self._replace(epoch=epoch, previous_epoch=self.epoch)


NEWCOMER = CurrentAssignment()


class GroupEpoch(NamedTuple):
    """The group's epoch rises whenever its assignment has to be thought over."""

    group_id: str
    epoch: int | None
    topics_hash: int = 0


class MemberSubscribed(NamedTuple):
    group_id: str
    member_id: str
    subscription: Subscription | None


class TargetEpoch(NamedTuple):
    """The group epoch that the target assignment was made for, and when, by the calendar."""

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
    """The topics that a regular expression meant, and which version of the topics' names it was matched against."""

    topics: frozenset[str]
    version: int


class RegexResolved(NamedTuple):
    group_id: str
    regex: str
    resolved: ResolvedTopics | None


class Rebalance(NamedTuple):
    """Why a group thinks its assignment over: for those who ask later. Not written beside the others."""

    group_id: str
    epoch: int
    cause: str
    members_before: tuple[str, ...]
    members_after: tuple[str, ...]


ModernFact = GroupEpoch | MemberSubscribed | TargetEpoch | TargetOf | HoldingOf | RegexResolved | Rebalance


class ConsumerGroupConfig(NamedTuple):
    """What the configuration says about a group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0  # a target stands for at least this long; 0: until it does not fit any more
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the first is taken where nobody asks for one
    may_upgrade: bool = True  # a classic group becomes a consumer group when its first member of that kind comes
    may_downgrade: bool = True  # and a classic one again when the last has gone


class Heartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat, with null for what has not changed since the last one."""

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
    classic: ClassicMemberMetadata | None = None  # a JoinGroup of the classic protocol, in these terms

    @property
    def is_full(self) -> bool:
        """A member that has lost track says everything again, and is told everything."""
        subscribed = self.topics is not None or self.regex is not None
        return subscribed and self.owned is not None and self.rebalance_timeout_ms != -1


class HeartbeatReply(NamedTuple):
    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assigned: Partitions | None  # None: as before


def session_timer(group_id: str, member_id: str) -> str:
    """Due when the member has been silent for too long."""
    return timer_name(FAMILY, "session", group_id, member_id)


def rebalance_timer(group_id: str, member_id: str) -> str:
    """Due when the member should have given up its partitions long ago."""
    return timer_name(FAMILY, "rebalance", group_id, member_id)
