"""What a request of the classic protocol has to be, before anything comes of it; and the values that it turns into."""

from dataclasses import replace

from headrace.core.coordinator import Ticket
from headrace.core.group.classic_draft import Draft
from headrace.core.group.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidGroupId,
    UnknownMember,
)
from headrace.core.group.subscription import subscribed_topics
from headrace.core.group.values import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    JoinRequest,
    Leaving,
    Member,
)
from headrace.model.errors import MessageTooLarge, RequestError

# Records and older requests write the length of a name in 16 bits, so a longer one could not be written down.
NAME_BYTES_MAX = 2**15 - 1
# A member's id is its instance id, or its client's, with a dash and a random id behind it.
MEMBER_SUFFIX_BYTES = 37
# What a member says of itself becomes part of its group's record, and that must fit into a batch of the offsets topic
# (max.message.bytes, a mebibyte). One that could not be written down even alone is refused before it takes a place.
METADATA_BYTES_MAX = 1_000_000


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("a group has a name")
    if len(group_id.encode()) > NAME_BYTES_MAX:
        raise InvalidGroupId(f"the name of a group has at most {NAME_BYTES_MAX} bytes")


def check_names(request: JoinRequest) -> None:
    """Names that cannot be written down are refused before anybody depends on them."""
    names = [request.instance_id or "", request.protocol_type, *(offered.name for offered in request.protocols)]
    if any(len(name.encode()) > NAME_BYTES_MAX - MEMBER_SUFFIX_BYTES for name in names):
        raise RequestError(f"names have at most {NAME_BYTES_MAX - MEMBER_SUFFIX_BYTES} bytes")


def check_metadata(request: JoinRequest) -> None:
    size = sum(len(offered.metadata) for offered in request.protocols)
    if size > METADATA_BYTES_MAX:
        raise MessageTooLarge(f"a member's metadata has {size} bytes; at most {METADATA_BYTES_MAX} are kept")


def checked_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> Member:
    """The member that a request speaks for; raises if there is none, or another process has its instance id."""
    if instance_id is not None:
        current = group.member_of_instance(instance_id)
        if current is None:
            raise UnknownMember(f"no member of {group.group_id} has the instance id {instance_id}")
        if current != member_id:
            raise FencedInstance(f"{instance_id} has joined {group.group_id} with another member id")
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMember(f"{member_id} is not a member of {group.group_id}")
    return member


def check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise IllegalGeneration(f"group {group.group_id} is at generation {group.generation}")


def check_protocols(group: ClassicGroup, request: JoinRequest) -> None:
    """Some protocol must be common to everybody."""
    if not group.members:
        fits = bool(request.protocol_type and request.protocols)
    else:
        others = [one for one in group.members.values() if one.member_id != request.member_id]
        fits = group.protocol_type == request.protocol_type and any(
            all(one.speaks(offered.name) for one in others) for offered in request.protocols
        )
    if not fits:
        raise InconsistentProtocol(f"members of {group.group_id} have no protocol in common with this one")


def leaving_member(draft: Draft, leaving: Leaving) -> str:
    if leaving.instance_id is None:
        if leaving.member_id not in draft.members and leaving.member_id not in draft.pending:
            raise UnknownMember(f"{leaving.member_id} is not a member of {draft.group_id}")
        return leaving.member_id
    current = next((one.member_id for one in draft.members.values() if one.instance_id == leaving.instance_id), None)
    if current is None:
        raise UnknownMember(f"no member of {draft.group_id} has the instance id {leaving.instance_id}")
    # An administrator removes a static member by its instance id alone.
    if leaving.member_id and leaving.member_id != current:
        raise FencedInstance(f"{leaving.instance_id} has joined {draft.group_id} with another member id")
    return current


def new_member(request: JoinRequest, member_id: str, ticket: Ticket) -> Member:
    return Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        joining=ticket,
    )


def rejoined(known: Member, request: JoinRequest, ticket: Ticket) -> Member:
    return replace(new_member(request, known.member_id, ticket), assignment=known.assignment)


def reads_the_same(before: Member, after: Member, group: ClassicGroup) -> bool:
    """Whether a member that came back still wants the same topics; what else it says may differ."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return True
    return subscribed_topics(before.metadata_for(group.protocol)) == subscribed_topics(
        after.metadata_for(group.protocol)
    )


def cause(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what
