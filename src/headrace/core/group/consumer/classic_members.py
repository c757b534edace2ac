"""Classic-protocol members of a consumer group: their requests, translated to the consumer protocol.

There is no group leader: the broker assigns partitions. A JoinGroup completes at once, a SyncGroup returns the
member's current assignment, and a Heartbeat returns REBALANCE_IN_PROGRESS whenever the member has partitions to
revoke or to get.
"""

from collections.abc import Sequence

from headrace.core.coordinator import CoordinatorTime, Timer
from headrace.core.group.consumer.assignment import difference, pairs
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.consumer_protocol import (
    EmbeddedSubscription,
    by_id,
    read_subscription,
    write_assignment,
)
from headrace.core.group.consumer.heartbeat import live
from headrace.core.group.consumer.model import (
    JOINING,
    ClassicMemberMetadata,
    ConsumerGroupConfig,
    Heartbeat,
    MemberState,
    session_timer,
)
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.update import ConsumerGroupUpdate
from headrace.core.group.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from headrace.core.group.model import (
    CONSUMER_PROTOCOL_TYPE,
    JoinReply,
    JoinRequest,
    MemberIdentity,
    SyncReply,
    SyncRequest,
)
from headrace.model.errors import ProtocolError, RequestError


def join(
    group: ConsumerGroup,
    request: JoinRequest,
    new_id: str,
    topics: Topics,
    rules: ConsumerGroupConfig,
    now: CoordinatorTime,
) -> tuple[JoinReply, ConsumerGroupUpdate]:
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not request.protocols:
        raise InconsistentProtocol(f"group {group.group_id} is for consumers")
    if request.member_id and request.member_id not in group.subscriptions and request.instance_id is not None:
        raise UnknownMember(f"group {group.group_id} has no member {request.member_id}")
    if not request.member_id and request.instance_id is None and request.needs_known_id:
        raise MemberIdRequired(new_id)
    said = _said(request)
    member_id = request.member_id or new_id
    draft = ConsumerGroupUpdate(group)
    heartbeat = Heartbeat(
        group_id=group.group_id,
        member_id=member_id,
        epoch=JOINING,
        instance_id=request.instance_id,
        rack_id=said.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=said.topics,
        owned=by_id(said.owned, topics),
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMemberMetadata(
            request.session_timeout_ms, tuple((one.name, one.metadata) for one in request.protocols)
        ),
    )
    reply = live(draft, heartbeat, topics, rules, lambda name: True, now)
    protocol = request.protocols[0].name
    return JoinReply(member_id, reply.epoch, CONSUMER_PROTOCOL_TYPE, protocol, leader=""), draft


def _said(request: JoinRequest) -> EmbeddedSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except ProtocolError:
        raise InconsistentProtocol("the member's metadata is not a consumer subscription") from None


def sync(group: ConsumerGroup, request: SyncRequest, topics: Topics, now: CoordinatorTime) -> tuple[SyncReply, Timer]:
    side = _checked(group, request.member_id, request.instance_id, request.generation)
    protocol = side.protocols[0][0]
    for said, known in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol, protocol)):
        if said is not None and said != known:
            raise InconsistentProtocol(f"the member's protocol is {CONSUMER_PROTOCOL_TYPE} {protocol}")
    assignment = write_assignment(group.holding(request.member_id).assigned, topics)
    return SyncReply(assignment, CONSUMER_PROTOCOL_TYPE, protocol), _alive(group, request.member_id, side, now)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: CoordinatorTime
) -> tuple[RequestError | None, Timer]:
    side = _checked(group, member_id, instance_id, generation)
    reply = RebalanceInProgress("join again: the assignment has changed") if must_rejoin(group, member_id) else None
    return reply, _alive(group, member_id, side, now)


def must_rejoin(group: ConsumerGroup, member_id: str) -> bool:
    """Returns whether the member has to rejoin to get closer to its target assignment."""
    holding = group.holding(member_id)
    if holding.epoch < group.epoch or holding.state is MemberState.UNREVOKED:
        return True
    missing = difference(group.target(member_id), holding.assigned)
    return any(place not in group.owners for place in pairs(missing))


def leave(
    group: ConsumerGroup, leaving: Sequence[MemberIdentity], topics: Topics
) -> tuple[list[RequestError | None], ConsumerGroupUpdate]:
    draft = ConsumerGroupUpdate(group)
    outcomes: list[RequestError | None] = []
    gone: list[str] = []
    for one in leaving:
        try:
            member_id = _leaving(draft.group, one)
        except RequestError as error:
            outcomes.append(error)
            continue
        outcomes.append(None)
        gone.append(member_id)
        draft.remove_member(member_id)
    if gone:
        draft.raise_epoch(topics, f"member {', '.join(gone)} left")
    return outcomes, draft


def _leaving(group: ConsumerGroup, one: MemberIdentity) -> str:
    member_id = one.member_id
    if one.instance_id is not None:
        current = group.instances.get(one.instance_id)
        if current is None:
            raise UnknownMember(f"group {group.group_id} has no instance {one.instance_id}")
        if member_id and member_id != current:
            raise FencedInstance(f"instance {one.instance_id} is member {current} now")
        member_id = current
    if member_id not in group.subscriptions:
        raise UnknownMember(f"group {group.group_id} has no member {member_id}")
    return member_id


def _checked(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ClassicMemberMetadata:
    member_id = _leaving(group, MemberIdentity(member_id, instance_id))
    side = group.subscriptions[member_id].classic
    if side is None:
        raise UnknownMember(f"member {member_id} does not speak the classic protocol")
    epoch = group.holding(member_id).epoch
    if generation != epoch:
        raise IllegalGeneration(f"member {member_id} is at generation {epoch}")
    return side


def _alive(group: ConsumerGroup, member_id: str, side: ClassicMemberMetadata, now: CoordinatorTime) -> Timer:
    return Timer(session_timer(group.group_id, member_id), now + side.session_timeout_ms)
