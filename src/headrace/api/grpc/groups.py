"""The consumer group protocol as unary calls, for clients that implement group membership themselves.

Applies the defaults, and encodes and decodes subscriptions and assignments of the `consumer` protocol type for
clients that send topics and partitions instead of bytes.
"""

from collections.abc import Iterable

from headrace.api.grpc.clients import Clients
from headrace.api.grpc.errors import invalid
from headrace.api.grpc.validation import default, group_name, partition_index, short, topic_name, within
from headrace.client.aio import groups
from headrace.client.aio.admin import describe_group
from headrace.client.aio.groups import Membership, Offset, Protocol
from headrace.client.core.consumer_protocol import (
    PROTOCOL_TYPE,
    RANGE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.core.errors import KafkaApiError
from headrace.model.errors import ErrorCode, ProtocolError
from headrace.rpc import headrace_pb2 as pb

SESSION_TIMEOUT_MS = 30_000
REBALANCE_TIMEOUT_MS = 60_000
TIMEOUT_MS_MAX = 30 * 60_000  # Kafka's group.max.session.timeout.ms
METADATA_CHARACTERS_MAX = 4096  # Kafka's offset.metadata.max.bytes


async def join_group(clients: Clients, request: pb.JoinGroupRequest) -> pb.JoinGroupResponse:
    protocol_type = short("protocol_type", request.protocol_type) or PROTOCOL_TYPE
    joined = await groups.join(
        clients.coordinators,
        _who(request),
        protocol_type,
        _protocols(request, protocol_type),
        session_timeout_ms=default(
            "session_timeout_ms", request.session_timeout_ms, SESSION_TIMEOUT_MS, TIMEOUT_MS_MAX
        ),
        rebalance_timeout_ms=default(
            "rebalance_timeout_ms", request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS, TIMEOUT_MS_MAX
        ),
    )
    members = [
        pb.GroupMember(
            member_id=one.member_id,
            group_instance_id=one.group_instance_id or "",
            metadata=one.metadata,
            topics=_subscription(joined.protocol_type, one.metadata),
        )
        for one in joined.members
    ]
    return pb.JoinGroupResponse(
        generation_id=joined.generation_id,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name,
        leader=joined.leader,
        member_id=joined.member_id,
        members=members,
    )


def _protocols(request: pb.JoinGroupRequest, protocol_type: str) -> list[Protocol]:
    if request.protocols:
        if request.topics:
            raise invalid(
                "topics and protocols are mutually exclusive: the metadata of the protocols has the subscription"
            )
        return [Protocol(short("protocols.name", one.name), one.metadata) for one in request.protocols]
    if protocol_type != PROTOCOL_TYPE:
        raise invalid(f"protocols is empty: a group of type {protocol_type} needs at least one")
    return [Protocol(RANGE, encode_subscription(topic_name(name) for name in request.topics))]


async def sync_group(clients: Clients, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
    shares = {short("member_id", one.member_id): _share(one) for one in request.assignments}
    share = await groups.sync(
        clients.coordinators,
        _who(request, request.generation_id),
        shares,
        protocol_type=request.protocol_type or None,
        protocol_name=request.protocol_name or None,
        wait_s=REBALANCE_TIMEOUT_MS / 1000,
    )
    try:
        partitions = decode_assignment(share)
    except ProtocolError:
        partitions = {}  # the group has another protocol type, whose assignments have another format
    return pb.SyncGroupResponse(assignment=share, partitions=topic_partitions(partitions.items()))


def _share(one: pb.MemberAssignment) -> bytes:
    if one.assignment and one.partitions:
        raise invalid("assignment and partitions exclude each other: send one of them")
    if one.assignment:
        return one.assignment
    for partitions in one.partitions:
        for partition in partitions.partitions:
            partition_index(partition)
    return encode_assignment({topic_name(part.topic): list(part.partitions) for part in one.partitions})


async def heartbeat(clients: Clients, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    who = _who(request, request.generation_id)
    try:
        await groups.heartbeat(clients.coordinators, who)
    except KafkaApiError as refused:
        raise await _explain_unknown_member(clients, who, refused) from refused
    return pb.HeartbeatResponse()


async def leave_group(clients: Clients, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
    who = _who(request)
    try:
        await groups.leave(clients.coordinators, who)
    except KafkaApiError as refused:
        raise await _explain_unknown_member(clients, who, refused) from refused
    return pb.LeaveGroupResponse()


async def commit_offset(clients: Clients, request: pb.CommitOffsetRequest) -> pb.CommitOffsetResponse:
    topic, partition = topic_name(request.topic), partition_index(request.partition)
    within("offset", request.offset, 0)
    if len(request.metadata) > METADATA_CHARACTERS_MAX:
        raise invalid(f"metadata has {len(request.metadata)} characters; at most {METADATA_CHARACTERS_MAX} are taken")
    generation = request.generation_id if request.member_id else groups.NO_GENERATION
    offset = Offset(topic, partition, request.offset, request.metadata)
    await groups.commit(clients.coordinators, _who(request, generation), [offset])
    return pb.CommitOffsetResponse()


async def fetch_offset(clients: Clients, request: pb.FetchOffsetRequest) -> pb.FetchOffsetResponse:
    group, topic, partition = (
        group_name(request.group_id),
        topic_name(request.topic),
        partition_index(request.partition),
    )
    await clients.cluster.patiently(lambda: clients.cluster.partition(topic, partition))  # rejects unknown partitions
    (found,) = await groups.committed(clients.coordinators, group, {topic: [partition]})
    return pb.FetchOffsetResponse(offset=found.offset, metadata=found.metadata)


def _who(
    request: pb.JoinGroupRequest
    | pb.SyncGroupRequest
    | pb.HeartbeatRequest
    | pb.LeaveGroupRequest
    | pb.CommitOffsetRequest,
    generation_id: int = groups.NO_GENERATION,
) -> Membership:
    return Membership(
        group_id=group_name(request.group_id),
        member_id=short("member_id", request.member_id),
        generation_id=within("generation_id", generation_id, groups.NO_GENERATION),
        group_instance_id=short("group_instance_id", request.group_instance_id) or None,
    )


async def _explain_unknown_member(clients: Clients, who: Membership, refused: KafkaApiError) -> KafkaApiError:
    """Returns the error to send. Kafka returns UNKNOWN_MEMBER_ID also for a group that does not exist; this
    distinguishes the two.
    """
    if refused.code is not ErrorCode.UNKNOWN_MEMBER_ID:
        return refused
    try:
        await describe_group(clients.coordinators, who.group_id)
    except KafkaApiError as about_group:
        if about_group.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return about_group
    return KafkaApiError(refused.code, f"{who.group_id} has no member {who.member_id}; join the group again")


def _subscription(protocol_type: str, metadata: bytes) -> list[str]:
    if protocol_type != PROTOCOL_TYPE:
        return []
    try:
        return decode_subscription(metadata)
    except ProtocolError:
        return []  # the group leader receives the bytes unchanged


def topic_partitions(shares: Iterable[tuple[str, Iterable[int]]]) -> list[pb.TopicPartitions]:
    return [pb.TopicPartitions(topic=topic, partitions=sorted(partitions)) for topic, partitions in sorted(shares)]
