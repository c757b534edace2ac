"""Prevents a node whose clock differs too much from those of the other brokers from joining the cluster.

Timestamps, retention and transaction timeouts use each leader's clock. If one is an hour ahead, records are deleted
early and transactions aborted, depending on the leader. Checked once, before the node registers; a clock that is
corrected or changed later is checked at the next start.
"""

import asyncio
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from headrace.broker.network.inter_broker_client import Peers
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def check_clock(broker: "Broker") -> None:
    """Raises InvalidConfig if the clocks of the live brokers show that this host's clock is wrong."""
    others = [node_id for node_id in broker.image.live_brokers() if node_id != broker.node_id]
    if not others:
        return
    peers = Peers(broker)
    try:
        told = await asyncio.gather(*(_ahead_of(broker, peers, node_id) for node_id in others))
    finally:
        peers.close()
    ahead_ms = {node_id: ms for node_id, ms in zip(others, told, strict=True) if ms is not None}
    check_ahead(ahead_ms, broker.settings.integer("broker.clock.skew.max.ms"))


def check_ahead(ahead_ms: Mapping[int, int], limit_ms: int) -> None:
    """Raises InvalidConfig if the median of `ahead_ms` exceeds the limit.

    `ahead_ms`: by how much this host's clock is ahead of each other broker's. The median tolerates one wrong clock
    among the others.
    """
    if not ahead_ms:
        return
    middle_ms = median(ahead_ms.values())
    if abs(middle_ms) > limit_ms:
        off = f"{abs(middle_ms) / 1000:.0f} s {'ahead of' if middle_ms > 0 else 'behind'}"
        raise InvalidConfig(
            f"the clock of this host is {off} that of brokers {', '.join(map(str, sorted(ahead_ms)))}; set it right"
            f" (timedatectl, chronyc makestep), or allow more by broker.clock.skew.max.ms, which is {limit_ms}"
        )


async def _ahead_of(broker: "Broker", peers: Peers, node_id: int) -> int | None:
    """Returns by how many ms this host's clock is ahead of another broker's; None if that one does not report it."""
    from kio.schema.describe_quorum.v1 import request as asked
    from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse
    from kio.schema.types import TopicName

    from headrace.broker.handlers.access import METADATA_TOPIC
    from headrace.broker.handlers.kio_types import i32

    partition = asked.PartitionData(partition_index=i32(0))
    request = asked.DescribeQuorumRequest(
        topics=(asked.TopicData(topic_name=TopicName(METADATA_TOPIC), partitions=(partition,)),)
    )
    answer = await peers.ask(node_id, request, DescribeQuorumResponse)
    if answer is None:
        return None
    voters = [voter for topic in answer.topics for row in topic.partitions for voter in row.current_voters]
    its_own_ms = [voter.last_caught_up_timestamp for voter in voters if voter.replica_id == node_id]
    return broker.clock.wall_ms() - its_own_ms[0] if its_own_ms and its_own_ms[0] >= 0 else None
