"""Preferred read replica (KIP-392): the replica that a consumer should fetch from, the leader or one in its own rack.

Only in-sync replicas are selected: they have every committed record, and are never far behind.
"""

from collections.abc import Mapping

from headrace.core.replica.leader_state import LeaderState

READ_HERE = -1  # "no preferred read replica" in the protocol


def select_replica(
    rack: str, own_rack: str | None, racks: Mapping[int, str | None], led: LeaderState, offset: int
) -> int:
    """Returns the follower in the consumer's rack with the highest end offset; the lowest id among equals.

    `racks` has the racks of live brokers.
    """
    if not rack or rack == own_rack:
        return READ_HERE
    able = [
        (-follower.end_offset, broker)
        for broker, follower in led.followers.items()
        if broker in led.isr and racks.get(broker) == rack and follower.end_offset >= offset
    ]
    return min(able)[1] if able else READ_HERE
