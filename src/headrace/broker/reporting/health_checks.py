"""Health checks of a broker. All checks together take no longer than a scrape."""

from typing import TYPE_CHECKING

from headrace.core.image.model import NO_LEADER
from headrace.model.errors import PassingStorageError
from headrace.telemetry.health import Check, Checks, Status

if TYPE_CHECKING:
    from headrace.broker.server import Broker


def store_problem(broker: "Broker") -> str | None:
    """Returns why cluster metadata cannot change through this broker; None if it can."""
    figures, membership = broker.store_figures, broker.membership
    if membership is not None and (membership.may_be_fenced or figures.session_failure is not None):
        cause = figures.session_failure or "no response"
        age_s = membership.session_age_ms / 1000
        return f"the metadata store has not confirmed this broker's session for {age_s:.0f} s ({cause})"
    if figures.write_failure is not None:
        return f"the metadata store does not accept writes ({figures.write_failure})"
    return None


def is_active_controller(broker: "Broker") -> bool:
    """Whether this broker is the active controller and can commit. Without a session it may have been replaced."""
    is_controller = broker.membership is None or broker.image.controller == broker.node_id
    return is_controller and store_problem(broker) is None


# The check warns while less than this many times the reserve is free above the reserve, before producers are rejected.
RESERVES_WANTED = 4


def checks_of(broker: "Broker") -> Checks:
    return {
        "disk": _disk(broker),
        "logs": _logs(broker),
        "transactions": _transactions(broker),
        "coordinators": _coordinators(broker),
        "store": _store(broker),
        "replication": _replication(broker),
    }


def _disk(broker: "Broker") -> Check:
    if broker.group_commit is None:
        return Check(Status.OK, "everything is in memory")
    free, reserve = broker.files.free_bytes(broker.settings.data_dir), broker.reserve.reserve_bytes
    if free < reserve:
        return Check(
            Status.DEGRADED, f"{free} bytes are free, Produce requests are rejected below {reserve}: free disk space"
        )
    if free < reserve * (1 + RESERVES_WANTED):
        return Check(Status.DEGRADED, f"{free} bytes are free, and {reserve} of them are kept: free disk space soon")
    return Check(Status.OK, f"{free} bytes are free")


def _logs(broker: "Broker") -> Check:
    failed = [str(partition) for partition in broker.partitions.all() if partition.failure is not None]
    unopened = broker.partitions.unopened()
    failed += [str(name) for name, error in unopened.items() if not isinstance(error, PassingStorageError)]
    waiting = [str(name) for name, error in unopened.items() if isinstance(error, PassingStorageError)]
    if failed:
        return Check(
            Status.DEGRADED, f"{len(failed)} partitions are offline, first {failed[0]}: check the disk, then restart"
        )
    if waiting:
        found = f"{len(waiting)} partitions are offline until there is disk space to open them, first {waiting[0]}"
        return Check(Status.DEGRADED, f"{found}: free some, no restart is needed")
    return Check(Status.OK, "all partitions can be read and written")


def _transactions(broker: "Broker") -> Check:
    doubtful = [(one, rows[0].first_offset) for one in broker.partitions.all() if (rows := one.doubtful_transactions())]
    if not doubtful:
        return Check(Status.OK, "no corrupt batch may be the end marker of an open transaction")
    partition, offset = doubtful[0]
    found = f"{len(doubtful)} partitions have an open transaction whose end marker may be corrupt, first {partition}"
    advice = f"headrace transactions abort --topic {partition.topic} --partition {partition.index} --start {offset}"
    return Check(Status.DEGRADED, f"{found}: if it stays open, end it as aborted: {advice}")


def _coordinators(broker: "Broker") -> Check:
    errors = broker.coordinator_load_errors()
    if not errors:
        return Check(Status.OK, "all coordinator partitions that are led here can be read")
    name, error = next(iter(errors.items()))
    found = f"{len(errors)} coordinator partitions cannot be read, first {name}: {error}"
    return Check(Status.DEGRADED, f"{found}; their groups or transactional ids do not work: restore the partition")


def _store(broker: "Broker") -> Check:
    """Produce and fetch work without the metadata store. Only a broker that is also isolated is down."""
    problem, membership = store_problem(broker), broker.membership
    if membership is not None and membership.is_isolated and membership.may_be_fenced:
        return Check(Status.DOWN, f"{problem}, and the other brokers do not count this one: check its network")
    if problem is not None:
        return Check(Status.DEGRADED, f"{problem}: no topic, leader or ISR can change; check the store")
    if membership is None:
        return Check(Status.OK, "the metadata store is this node's own")
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
