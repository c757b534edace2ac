"""A broker's own facts: its registration, the leader epochs after a crash, blocks of producer ids.

Pure decisions over the image; whoever commits them is elsewhere.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.core.cluster import facts
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import Decision, PartitionState
from headrace.model.errors import InvalidConfig
from headrace.model.settings import Listener

# How many ids a broker takes at a time, as Kafka: a commit per thousand new producers, and at most a thousand
# of 2^63 ids lost in a crash.
PRODUCER_IDS_PER_BLOCK = 1000


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    count: int


def register(
    image: ClusterImage,
    *,
    node_id: int,
    endpoints: Iterable[Listener],
    rack: str | None,
    configured_cluster_id: str | None,
    new_cluster_id: str,
) -> Decision[None]:
    """This broker is here, under these addresses; the first one of all gives the cluster its id."""
    writes: dict[str, bytes | None] = {
        facts.broker_key(node_id): facts.encode_broker(endpoints, rack),
        facts.CONTROLLER: facts.encode_field("node", node_id),
    }
    if not image.cluster_id:
        writes[facts.CLUSTER] = facts.encode_field("id", configured_cluster_id or new_cluster_id)
    elif configured_cluster_id not in (None, image.cluster_id):
        raise InvalidConfig(
            f"this node is configured for cluster {configured_cluster_id}, but its metadata belongs to"
            f" {image.cluster_id}; correct cluster.id, or give the node a directory of its own"
        )
    return Decision(None, writes)


def topics_led_by(image: ClusterImage, node_id: int) -> list[str]:
    """Topics of which this broker leads at least one partition."""
    return [topic.name for topic in image.topics.values() if any(state.leader == node_id for state in topic.partitions)]


def raise_leader_epochs(names: Collection[str], image: ClusterImage, node_id: int) -> dict[str, Decision[None]]:
    """After a crash: records that were never synced may be gone, and others will take their offsets.

    A new epoch tells the two apart, for clients that check for truncation.
    """
    decisions = {}
    for name in names:
        topic = image.topics.get(name)
        if topic is None:  # deleted since the names were collected
            decisions[name] = Decision(None, {})
            continue
        led = [index for index, state in enumerate(topic.partitions) if state.leader == node_id]
        states = [_next_epoch(state) if state.leader == node_id else state for state in topic.partitions]
        decisions[name] = Decision(None, dict(facts.block_writes(topic.topic_id, states, led)))
    return decisions


def next_producer_ids(image: ClusterImage) -> Decision[ProducerIdBlock]:
    first = image.next_producer_id
    writes = {facts.PRODUCER_IDS: facts.encode_field("next", first + PRODUCER_IDS_PER_BLOCK)}
    return Decision(ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK), writes)


def _next_epoch(state: PartitionState) -> PartitionState:
    return state._replace(leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)
