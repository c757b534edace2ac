"""Which replica a consumer should read from: the leader, or one in its own rack that has what it asks for (KIP-392).

Only replicas in sync are offered: they are never far behind, and hold everything that is committed.
"""

from collections.abc import Mapping

from headrace.core.replica.leader_state import LeaderState

READ_HERE = -1  # as the protocol says "no other replica is preferred"


def select_replica(
    rack: str, own_rack: str | None, racks: Mapping[int, str | None], led: LeaderState, offset: int
) -> int:
    """The follower in the consumer's rack that is furthest; the lowest id among equals.

    `racks` are those of the brokers that are there.
    """
    if not rack or rack == own_rack:
        return READ_HERE
    able = [
        (-follower.end_offset, broker)
        for broker, follower in led.followers.items()
        if broker in led.isr and racks.get(broker) == rack and follower.end_offset >= offset
    ]
    return min(able)[1] if able else READ_HERE
