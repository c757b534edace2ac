"""A client's view of a partition: its leader, ISR and offline replicas, given the brokers that the client can reach.

Maps an unavailable broker or a missing listener to error codes for Metadata and DescribeTopicPartitions. Pure; caches
nothing.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.model.errors import ErrorCode
from headrace.protocol.messages.metadata import LISTENER_NOT_FOUND_FROM, PartitionRow


class View(NamedTuple):
    """What determines how partitions appear to a client, besides their own state."""

    known: frozenset[int]  # registered brokers
    reachable: frozenset[int]  # live brokers that have the listener of the request


def partition_rows(version: int, states: Iterable[PartitionRegistration], view: View) -> Iterator[PartitionRow]:
    """Yields the partition rows of a Metadata response in the given version."""
    for number, state in enumerate(states):
        row = PartitionRow(
            partition=number,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=state.isr,
            offline=offline_replicas(state, view),
        )
        if state.leader not in view.reachable:
            row = row._replace(leader=NO_LEADER, error=_no_leader(version, state, view))
        yield _as_version_0(row, view) if version == 0 else row


def offline_replicas(state: PartitionRegistration, view: View) -> tuple[int, ...]:
    if view.reachable.issuperset(state.replicas):
        return ()
    return tuple(replica for replica in state.replicas if replica not in view.reachable)


def _no_leader(version: int, state: PartitionRegistration, view: View) -> ErrorCode:
    if version >= LISTENER_NOT_FOUND_FROM and state.leader in view.known:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.LEADER_NOT_AVAILABLE


def _as_version_0(row: PartitionRow, view: View) -> PartitionRow:
    """Version 0 lists live replicas only, with REPLICA_NOT_AVAILABLE if any is missing."""
    replicas = tuple(replica for replica in row.replicas if replica in view.reachable)
    isr = tuple(replica for replica in row.isr if replica in view.reachable)
    complete = len(replicas) == len(row.replicas) and len(isr) == len(row.isr)
    error = row.error if complete or row.error else ErrorCode.REPLICA_NOT_AVAILABLE
    return row._replace(replicas=replicas, isr=isr, error=error)
