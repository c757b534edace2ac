"""What every kind of group offers to the machine that hosts it.

A partition of the offsets topic holds groups of several kinds and the offsets of all of them. Each kind is a family:
it decides for its groups, writes its own kinds of records and names its own timers. `coordinator_shard.py` brings each
record, fact and timer to its family, and asks the family of a group whatever depends on its members.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime, Decision, RequestId, Timer
from headrace.core.group.model import GroupListing, JoinRequest, MemberIdentity, SyncRequest


class Committer(NamedTuple):
    """Who commits or fetches offsets, as far as it says. A client without a group says nothing."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1  # or the member's epoch, in groups of the newer protocol
    api_version: int = 0
    transactional: bool = False


class OffsetExpirationCondition(NamedTuple):
    """When the offsets of a group may be forgotten."""

    idle_since_ms: int | None = None  # wall time since when the group is empty; None: count from each commit
    keeps_topics: frozenset[str] = frozenset()  # members read these: their offsets stay
    keeps_all: bool = False


class GroupManager(Protocol):
    name: str  # the first word of its timers' names, and the type that ListGroups tells
    record_kinds: frozenset[int]
    fact_types: tuple[type, ...]

    def holds(self, group_id: str) -> bool: ...

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members, so that it can be deleted, or replaced by one of another kind."""

    def listings(self) -> Iterable[GroupListing]: ...

    # Its part of the machine

    def encode(self, fact: Any) -> CoordinatorRecord | None: ...

    def apply(self, fact: Any, offset: int) -> None: ...

    def replay(self, kind: int, record: CoordinatorRecord, offset: int) -> None: ...

    def loaded(self, now: CoordinatorTime) -> Decision[Any]: ...

    def expire(self, timer: str, now: CoordinatorTime) -> Decision[Any]:
        """`timer` comes without the family's name."""

    # What offsets depend on

    def check_commit(self, group_id: str, committer: Committer, now: CoordinatorTime) -> Sequence[Timer]:
        """Raise unless these offsets may be committed; a commit also says that the member is alive."""

    def check_fetch(self, group_id: str, committer: Committer) -> None:
        """Raise if a member that says which epoch it is at is wrong about it."""

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics that members read now; None where the protocol does not tell."""

    def offsets_rule(self, group_id: str) -> OffsetExpirationCondition: ...

    def forget(self, group_id: str) -> Sequence[Any]:
        """The facts that make the group, which is empty, disappear."""


@runtime_checkable
class ClassicProtocolSupport(Protocol):
    """A family that takes the requests of the classic protocol."""

    def holds(self, group_id: str) -> bool: ...

    def join(self, request: JoinRequest, new_id: str, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]: ...

    def sync(self, request: SyncRequest, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]: ...

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        ticket: RequestId,
        now: CoordinatorTime,
    ) -> Decision[Any]: ...

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity], ticket: RequestId, now: CoordinatorTime
    ) -> Decision[Any]: ...


def timer_name(family: str, kind: str, group_id: str, member_id: str = "") -> str:
    """A name that can be taken apart again, whatever characters groups and members have in theirs."""
    return f"{family} {kind} {len(group_id)} {group_id}{member_id}"


def split_timer(rest: str) -> tuple[str, str, str]:
    """Kind, group and member, from a timer's name without its family."""
    kind, length, names = rest.split(" ", 2)
    return kind, names[: int(length)], names[int(length) :]
