"""The Admin service: topics, consumer groups and committed offsets, for operators and tools. Also GetTopicMetadata:
topics and the leaders of their partitions.
"""

import asyncio
from collections.abc import Sequence

from headrace.api.grpc.clients import Clients
from headrace.api.grpc.errors import invalid
from headrace.api.grpc.groups import METADATA_CHARACTERS_MAX, topic_partitions
from headrace.api.grpc.validation import default, group_name, partition_index, topic_name, within
from headrace.client.aio import admin, groups
from headrace.client.aio import admin as topic_calls
from headrace.client.aio.admin import DescribedMember
from headrace.client.aio.client import TopicMetadata
from headrace.client.aio.fetch import EARLIEST, LATEST, offsets_at
from headrace.client.aio.groups import Membership, Offset
from headrace.client.core.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from headrace.client.core.errors import KafkaApiError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.model.errors import ErrorCode, ProtocolError
from headrace.rpc import headrace_pb2 as pb


async def get_topic_metadata(clients: Clients, request: pb.GetTopicMetadataRequest) -> pb.GetTopicMetadataResponse:
    names = [topic_name(name) for name in request.topics] or None
    facts = await clients.cluster.patiently(lambda: clients.cluster.described(names))
    for name in names or ():
        if name not in facts.topics:
            raise KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    brokers = sorted(facts.brokers.values())
    return pb.GetTopicMetadataResponse(
        topics=[topic_metadata(facts.topics[name]) for name in sorted(facts.topics)],
        brokers=[pb.Broker(id=one.id, host=one.host, port=one.port, rack=one.rack or "") for one in brokers],
        cluster_id=facts.id or "",
        controller_id=facts.controller,
    )


def topic_metadata(facts: TopicMetadata) -> pb.TopicMetadata:
    partitions = [
        pb.PartitionMetadata(
            partition=one.partition,
            leader=one.leader,
            leader_epoch=one.leader_epoch,
            replicas=one.replicas,
            in_sync_replicas=one.isr,
            offline_replicas=one.offline,
        )
        for one in facts.partitions
    ]
    return pb.TopicMetadata(name=facts.name, id=str(facts.id or ""), internal=facts.internal, partitions=partitions)


# More than any cluster serves. The broker applies its own limit.
PARTITIONS_MAX = 1_000_000
REPLICATION_FACTOR_MAX = 1000
PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 1000, 10_000
_UNKNOWN_LAG = -1


async def create_topic(clients: Clients, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
    otherwise = topic_calls.BROKERS_DEFAULT
    created = await topic_calls.create(
        clients.cluster,
        topic_name(request.name),
        partitions=default("partitions", request.partitions, otherwise, PARTITIONS_MAX),
        replication_factor=default("replication_factor", request.replication_factor, otherwise, REPLICATION_FACTOR_MAX),
        configs=dict(request.configs),
        validate_only=request.validate_only,
    )
    return pb.CreateTopicResponse(
        id=created.id, partitions=created.partitions, replication_factor=created.replication_factor
    )


async def delete_topic(clients: Clients, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
    await topic_calls.delete(clients.cluster, topic_name(request.name))
    return pb.DeleteTopicResponse()


async def list_topics(clients: Clients, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
    size = default("page_size", request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
    topics = (await clients.cluster.patiently(clients.cluster.everything)).topics
    names = sorted(
        name
        for name, facts in topics.items()
        if name > request.page_token and (request.include_internal or not facts.internal)
    )
    page = [
        pb.TopicListing(name=name, partitions=len(topics[name].partitions), internal=topics[name].internal)
        for name in names[:size]
    ]
    return pb.ListTopicsResponse(topics=page, next_page_token=page[-1].name if len(names) > size else "")


async def describe_topic(clients: Clients, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
    name = topic_name(request.name)
    facts = await clients.cluster.patiently(lambda: clients.cluster.topic(name))
    partitions = [one.partition for one in facts.partitions]
    first, following, configs = await asyncio.gather(
        _offsets(clients, name, partitions, EARLIEST),
        _offsets(clients, name, partitions, LATEST),
        topic_calls.configs_of(clients.cluster, name),
    )
    ranges = [
        pb.PartitionRange(partition=one, start_offset=first[one], end_offset=following[one]) for one in partitions
    ]
    return pb.DescribeTopicResponse(
        topic=topic_metadata(facts),
        ranges=ranges,
        configs=[pb.TopicConfig(name=one.name, value=one.value or "", is_default=one.is_default) for one in configs],
    )


async def add_partitions(clients: Clients, request: pb.AddPartitionsRequest) -> pb.AddPartitionsResponse:
    name, count = topic_name(request.name), within("total_count", request.total_count, 1, PARTITIONS_MAX)
    await topic_calls.grow(clients.cluster, name, count, validate_only=request.validate_only)
    return pb.AddPartitionsResponse()


async def list_offsets(clients: Clients, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
    name = topic_name(request.topic)
    within("timestamp_ms", request.timestamp_ms, EARLIEST)
    facts = await clients.topic(name)
    partitions = [partition_index(one) for one in request.partitions] or [one.partition for one in facts.partitions]
    found = await _offsets(clients, name, partitions, request.timestamp_ms)
    rows = [pb.PartitionOffset(topic=name, partition=one, offset=found[one]) for one in partitions]
    return pb.ListOffsetsResponse(offsets=rows)


async def _offsets(clients: Clients, topic: str, partitions: Sequence[int], timestamp_ms: int) -> dict[int, int]:
    return await clients.cluster.patiently(
        lambda: offsets_at(clients.cluster, topic, partitions, timestamp_ms, committed_only=False)
    )


async def list_groups(clients: Clients, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
    found = await admin.list_groups(clients.coordinators, request.states)
    groups = [pb.GroupListing(group_id=one.group_id, protocol_type=one.protocol_type, state=one.state) for one in found]
    return pb.ListGroupsResponse(groups=groups)


async def describe_group(clients: Clients, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
    name = group_name(request.group_id)
    found = await admin.describe_group(clients.coordinators, name)
    return pb.DescribeGroupResponse(
        group_id=name,
        state=found.state,
        protocol_type=found.protocol_type,
        protocol_name=found.protocol_name,
        members=[_member(one, found.protocol_type) for one in found.members],
    )


def _member(one: DescribedMember, protocol_type: str) -> pb.GroupMemberDescription:
    try:
        share = decode_assignment(one.assignment) if protocol_type == PROTOCOL_TYPE else {}
    except ProtocolError:
        share = {}
    return pb.GroupMemberDescription(
        member_id=one.member_id,
        group_instance_id=one.group_instance_id or "",
        client_id=one.client_id,
        client_host=one.client_host,
        partitions=topic_partitions(share.items()),
    )


async def delete_group(clients: Clients, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
    await admin.delete_group(clients.coordinators, group_name(request.group_id))
    return pb.DeleteGroupResponse()


async def list_group_offsets(clients: Clients, request: pb.ListGroupOffsetsRequest) -> pb.ListGroupOffsetsResponse:
    committed = await groups.committed(clients.coordinators, group_name(request.group_id))
    rows = [
        pb.GroupOffset(
            topic=one.topic,
            partition=one.partition,
            offset=one.offset,
            metadata=one.metadata,
            lag=await _lag(clients, one),
        )
        for one in sorted(committed)
    ]
    return pb.ListGroupOffsetsResponse(offsets=rows)


async def _lag(clients: Clients, committed: Offset) -> int:
    try:
        end = await offsets_at(clients.cluster, committed.topic, [committed.partition], LATEST)
    except (KafkaApiError, BrokerUnreachable):  # the topic may be deleted; the other offsets are still returned
        return _UNKNOWN_LAG
    return max(end[committed.partition] - committed.offset, 0)


async def alter_group_offsets(clients: Clients, request: pb.AlterGroupOffsetsRequest) -> pb.AlterGroupOffsetsResponse:
    if not request.offsets:
        raise invalid("offsets is empty: name at least one partition with its offset")
    offsets = []
    for one in request.offsets:
        topic, partition = topic_name(one.topic), partition_index(one.partition)
        await clients.cluster.patiently(lambda t=topic, p=partition: clients.cluster.partition(t, p))  # type: ignore[misc]
        if len(one.metadata) > METADATA_CHARACTERS_MAX:
            raise invalid(f"metadata has {len(one.metadata)} characters; at most {METADATA_CHARACTERS_MAX} are taken")
        offsets.append(Offset(topic, partition, within("offset", one.offset, 0), one.metadata))
    who = Membership(group_id=group_name(request.group_id))
    await groups.commit(clients.coordinators, who, offsets)
    return pb.AlterGroupOffsetsResponse()
