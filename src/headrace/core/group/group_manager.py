"""Interface of group managers: what each group type offers to the coordinator shard.

A partition of the offsets topic has groups of several types and the offsets of all of them. The manager of a type
(`family` in code) handles its groups' requests, writes its own kinds of records and names its own timers.
`coordinator_shard.py` routes each record and timer to its manager, and calls the manager of a group for whatever
depends on its members.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime, Decision, RequestId, Timer
from headrace.core.group.model import GroupListing, JoinRequest, MemberIdentity, SyncRequest


class Committer(NamedTuple):
    """The client that commits or fetches offsets, as far as its request identifies it.

    A client without a group sends no identity.
    """

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1  # or the member epoch, in groups of the consumer protocol
    api_version: int = 0
    transactional: bool = False


class OffsetExpirationCondition(NamedTuple):
    """When the offsets of a group may expire."""

    idle_since_ms: int | None = None  # wall time since when the group is empty; None: since each commit
    keeps_topics: frozenset[str] = frozenset()  # members subscribe to these topics: their offsets stay
    keeps_all: bool = False


class GroupManager(Protocol):
    name: str  # prefix of its timers' names, and the type in ListGroups
    record_kinds: frozenset[int]
    fact_types: tuple[type, ...]

    def holds(self, group_id: str) -> bool: ...

    def is_empty(self, group_id: str) -> bool:
        """Returns whether the group has no members, so that it can be deleted or replaced by one of another type."""

    def listings(self) -> Iterable[GroupListing]: ...

    # CoordinatorShard

    def encode(self, fact: Any) -> CoordinatorRecord | None: ...

    def apply(self, fact: Any, offset: int) -> None: ...

    def replay(self, kind: int, record: CoordinatorRecord, offset: int) -> None: ...

    def loaded(self, now: CoordinatorTime) -> Decision[Any]: ...

    def expire(self, timer: str, now: CoordinatorTime) -> Decision[Any]:
        """Called when a timer is due. `timer` is its name without the manager's prefix."""

    # Checks for offsets

    def check_commit(self, group_id: str, committer: Committer, now: CoordinatorTime) -> Sequence[Timer]:
        """Raises unless these offsets may be committed. A commit also restarts the member's session timeout."""

    def check_fetch(self, group_id: str, committer: Committer) -> None:
        """Raises if the member's epoch is wrong; members without an epoch are not checked."""

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Returns the topics that members subscribe to; None where the protocol does not reveal them."""

    def offsets_rule(self, group_id: str) -> OffsetExpirationCondition: ...

    def forget(self, group_id: str) -> Sequence[Any]:
        """Returns the records that remove an empty group."""


@runtime_checkable
class ClassicProtocolSupport(Protocol):
    """A group manager that handles requests of the classic protocol."""

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
    """Returns a timer name that `split_timer` parses, whatever characters group and member ids contain."""
    return f"{family} {kind} {len(group_id)} {group_id}{member_id}"


def split_timer(rest: str) -> tuple[str, str, str]:
    """Returns kind, group and member from a timer name without its prefix."""
    kind, length, names = rest.split(" ", 2)
    return kind, names[: int(length)], names[int(length) :]
