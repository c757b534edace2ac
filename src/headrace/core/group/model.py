"""Immutable value types of classic groups: members, state, requests, responses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from headrace.core.coordinator import RequestId

# Protocol type of consumers; Connect and others have their own.
CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1


class GroupState(StrEnum):
    """States by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# Allowed state transitions. A dead group has been removed, so it has no next state.
NEXT: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class Protocol(NamedTuple):
    """An assignment protocol that a member supports, with the member's metadata for the group leader."""

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
    is_new: bool = False  # it has not been in a generation yet
    joining: RequestId | None = None  # the JoinGroup that waits for the other members
    syncing: RequestId | None = None  # the SyncGroup that waits for the leader's assignment

    @property
    def is_parked(self) -> bool:
        """Returns whether a request of the member waits here.

        Such a member sends no heartbeats and does not time out.
        """
        return self.joining is not None or self.syncing is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")

    def speaks(self, protocol: str) -> bool:
        return any(offered.name == protocol for offered in self.protocols)


class InitialDelay(NamedTuple):
    """Delays the first rebalance of an empty group, and extends the delay while members keep joining."""

    delay_ms: int
    remaining_ms: int
    somebody_came: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroup:
    group_id: str
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1  # wall time; the age of an empty group is based on it
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    pending: frozenset[str] = frozenset()  # allocated member ids that were not used yet
    unsynced: frozenset[str] = frozenset()  # members that have sent no SyncGroup for this generation
    initial: InitialDelay | None = None  # only during the initial delay

    @property
    def is_forgettable(self) -> bool:
        """Returns whether the group has no members and no record in the log."""
        return self.state is GroupState.EMPTY and not self.generation and not self.pending

    def member_of_instance(self, instance_id: str) -> str | None:
        return next((one.member_id for one in self.members.values() if one.instance_id == instance_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoordinatorConfig:
    """Broker configuration of groups and their offsets."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000
    members_max: int = 2**31 - 1
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000


class GroupChanged(NamedTuple):
    """The group's new state. Written only if a new coordinator needs it."""

    group: ClassicGroup
    is_written: bool
    cause: str = ""  # cause of the rebalance that begins with this change


class GroupForgotten(NamedTuple):
    """The group was removed."""

    group_id: str


ClassicFact = GroupChanged | GroupForgotten


# Requests and responses


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
    needs_known_id: bool = True  # KIP-394: newer clients rejoin with the member id from the error
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
    members: tuple[JoinedMember, ...] = ()  # for the group leader only, which assigns the partitions
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None  # None: not sent by the client
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
