"""The nouns of classic groups: values that never change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from headrace.core.coordinator import RequestId

# Consumers call their protocol type so; Connect and others have their own.
CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1


class GroupState(StrEnum):
    """In the words that clients and tools know."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# Which state may follow which. A group that is dead is not there any more, so nothing follows.
NEXT: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class Protocol(NamedTuple):
    """A way to share partitions that a member can take part in, with what it tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # it waits for its first generation
    joining: RequestId | None = None  # its JoinGroup waits for the others
    syncing: RequestId | None = None  # its SyncGroup waits for the leader

    @property
    def is_parked(self) -> bool:
        """A member whose request waits with us sends no heartbeats, and needs none."""
        return self.joining is not None or self.syncing is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")

    def speaks(self, protocol: str) -> bool:
        return any(offered.name == protocol for offered in self.protocols)


class InitialDelay(NamedTuple):
    """An empty group waits a little for more members, and a little longer as long as they come."""

    delay_ms: int
    remaining_ms: int
    somebody_came: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroup:
    group_id: str
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1  # wall time; what the age of an empty group is counted from
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    pending: frozenset[str] = frozenset()  # ids that were given out and not used yet
    unsynced: frozenset[str] = frozenset()  # members that know the generation and have not asked for their share
    initial: InitialDelay | None = None  # only while the first members gather

    @property
    def is_forgettable(self) -> bool:
        """Nothing was ever written about it, and nobody is in it."""
        return self.state is GroupState.EMPTY and not self.generation and not self.pending

    def member_of_instance(self, instance_id: str) -> str | None:
        return next((one.member_id for one in self.members.values() if one.instance_id == instance_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoordinatorConfig:
    """What the broker's configuration says about groups and their offsets."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000
    members_max: int = 2**31 - 1
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000


class GroupChanged(NamedTuple):
    """The group is now this. Only what a new coordinator has to know is written down."""

    group: ClassicGroup
    is_written: bool
    cause: str = ""  # of the rebalance that begins with it


class GroupForgotten(NamedTuple):
    """Nothing is known of the group any more."""

    group_id: str


ClassicFact = GroupChanged | GroupForgotten


# What clients ask, and what they are told


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_known_id: bool = True  # KIP-394: newer clients come back with the id that they are given
    can_skip_assignment: bool = True
    reason: str = ""


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    member_id: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str
    members: tuple[JoinedMember, ...] = ()  # for the leader only, who shares the partitions out
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None  # None: the client does not say
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class SyncReply(NamedTuple):
    assignment: bytes
    protocol_type: str | None
    protocol: str | None


class MemberIdentity(NamedTuple):
    member_id: str
    instance_id: str | None = None
    reason: str = ""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    kind: str  # "classic" or "consumer"
