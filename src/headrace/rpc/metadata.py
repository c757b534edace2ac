"""GetTopicMetadata: which topics there are, and who leads their partitions."""

from headrace.client.cluster import TopicFacts
from headrace.client.refusals import Refused
from headrace.model.errors import ErrorCode
from headrace.rpc import headrace_pb2 as pb
from headrace.rpc.checks import topic_name
from headrace.rpc.clients import Clients


async def get_topic_metadata(clients: Clients, request: pb.GetTopicMetadataRequest) -> pb.GetTopicMetadataResponse:
    names = [topic_name(name) for name in request.topics] or None
    facts = await clients.cluster.patiently(lambda: clients.cluster.described(names))
    for name in names or ():
        if name not in facts.topics:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    brokers = sorted(facts.brokers.values())
    return pb.GetTopicMetadataResponse(
        topics=[topic_metadata(facts.topics[name]) for name in sorted(facts.topics)],
        brokers=[pb.Broker(id=one.id, host=one.host, port=one.port, rack=one.rack or "") for one in brokers],
        cluster_id=facts.id or "",
        controller_id=facts.controller,
    )


def topic_metadata(facts: TopicFacts) -> pb.TopicMetadata:
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
