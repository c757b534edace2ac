"""Is this broker well? Each check looks at one thing; all of them together take no longer than a scrape."""

from typing import TYPE_CHECKING

from headrace.core.cluster.values import NO_LEADER
from headrace.telemetry.health import Check, Checks, Status

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# Room for this many more reserves before producers are refused: a warning that comes in time.
RESERVES_WANTED = 4


def checks_of(broker: "Broker") -> Checks:
    return {
        "disk": _disk(broker),
        "logs": _logs(broker),
        "store": _store(broker),
        "replication": _replication(broker),
    }


def _disk(broker: "Broker") -> Check:
    if broker.group_commit is None:
        return Check(Status.OK, "everything is in memory")
    free, reserve = broker.files.free_bytes(broker.settings.data_dir), broker.reserve.reserve_bytes
    if free < reserve:
        return Check(Status.DEGRADED, f"{free} bytes are free, producers are refused below {reserve}: make room")
    if free < reserve * (1 + RESERVES_WANTED):
        return Check(Status.DEGRADED, f"{free} bytes are free, and {reserve} of them are kept: make room soon")
    return Check(Status.OK, f"{free} bytes are free")


def _logs(broker: "Broker") -> Check:
    failed = [str(partition) for partition in broker.partitions.all() if partition.failure is not None]
    if failed:
        return Check(
            Status.DEGRADED, f"{len(failed)} partitions are offline, first {failed[0]}: look at the disk, then restart"
        )
    return Check(Status.OK, "all partitions can be read and written")


def _store(broker: "Broker") -> Check:
    """A broker of a cluster whose session may be over acknowledges nothing: others may lead by now."""
    if broker.membership is None:
        return Check(Status.OK, "the facts are this node's own")
    if broker.membership.may_be_fenced:
        return Check(Status.DOWN, "the session in the metadata store may be over: is the store reachable?")
    return Check(Status.OK, "the session in the metadata store is alive")


def _replication(broker: "Broker") -> Check:
    leaderless = behind = 0
    for topic in broker.image.topics.values():
        for state in topic.partitions:
            leaderless += state.leader == NO_LEADER
            behind += state.leader == broker.node_id and len(state.isr) < len(state.replicas)
    if leaderless:
        return Check(Status.DEGRADED, f"{leaderless} partitions of the cluster have no leader: start their brokers")
    if behind:
        return Check(Status.DEGRADED, f"{behind} partitions led here have replicas that are not in sync")
    return Check(Status.OK, "all replicas of what is led here are in sync")
