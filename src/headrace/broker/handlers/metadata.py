from headrace.broker.call import Call
from headrace.core.cluster.topics import NewTopic
from headrace.protocol.metadata import *


async def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
    broker = call.broker
    v = call.api_version
    names = request.topics if request.topics is not None else list(broker.image.topics)
    blocks = []
    for name in names:
        if name not in broker.image.topics:
            await broker.controller.create_topics([NewTopic(name=name)])
        topic = broker.image.topics[name]
        rows = [PartitionRow(i, p.leader, p.leader_epoch, p.replicas, p.isr) for i, p in enumerate(topic.partitions)]
        blocks.append(encode_topic(v, name, topic.topic_id, encode_partitions(v, rows)))
    nodes = [Node(b.node_id, b.endpoints[0].host, b.endpoints[0].port, b.rack) for b in broker.image.brokers.values()]
    return MetadataResponse(nodes, broker.image.cluster_id, broker.node_id, blocks)
