"""How a client sees a partition: who leads it, as far as the client can reach anybody.

Decides what a missing broker or listener looks like in Metadata and DescribeTopicPartitions. Nothing is cached here.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.model.errors import ErrorCode
from headrace.protocol.messages.metadata import LISTENER_NOT_FOUND_FROM, PartitionRow


class View(NamedTuple):
    """What decides how partitions look to a client, besides their own state."""

    known: frozenset[int]  # brokers that are registered
    reachable: frozenset[int]  # are there, and have the listener through which the client came


def partition_rows(version: int, states: Iterable[PartitionRegistration], view: View) -> Iterator[PartitionRow]:
    """The rows of Metadata in the given version."""
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
    """The first version lists living replicas only, and says so when one is missing."""
    replicas = tuple(replica for replica in row.replicas if replica in view.reachable)
    isr = tuple(replica for replica in row.isr if replica in view.reachable)
    complete = len(replicas) == len(row.replicas) and len(isr) == len(row.isr)
    error = row.error if complete or row.error else ErrorCode.REPLICA_NOT_AVAILABLE
    return row._replace(replicas=replicas, isr=isr, error=error)
