"""Metrics of a broker, collected at a scrape: its counters, and values computed from its current state.

Runs on the event loop in slices: visiting 10,000 partitions takes 20 ms, and requests do not wait for that.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.broker.metrics import BrokerMetrics
from headrace.broker.replica.partition import Partition
from headrace.broker.reporting.group_report import group_families
from headrace.broker.reporting.health_checks import is_active_controller
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.core.image.model import NO_LEADER
from headrace.core.transaction.metadata import TransactionState
from headrace.metadata.instrumented_store import READ, SESSION, WATCH, WRITE
from headrace.model.errors import ErrorCode
from headrace.telemetry import broker_metrics as metrics
from headrace.telemetry.metrics import MetricFamily, by_label, one

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def families_of(broker: "Broker") -> list[MetricFamily]:
    """Returns all metrics of `telemetry/broker_metrics.py`."""
    logs = LogTotals(broker.node_id, unopened=len(broker.partitions.unopened()))
    await run_in_slices(logs.look_at(broker.partitions.all()))
    groups = await group_families(broker)
    return [
        MetricFamily(metrics.NODE, [((str(broker.node_id), broker.image.cluster_id), 1)]),
        *_request_families(broker.figures),
        *_network_families(broker),
        *_record_families(broker.figures),
        *_disk_families(broker),
        *logs.families(),
        *_change_families(broker),
        *groups,
        *_transaction_families(broker),
        *_cluster_families(broker),
        *_store_families(broker),
    ]


ERROR_NAMES = {int(code): code.name for code in ErrorCode}


def _request_families(figures: BrokerMetrics) -> Iterator[MetricFamily]:
    """APIs without requests are omitted: a series for each would be most of the page."""
    asked = [(api.label, one.value()) for api, one in figures.requests.items() if any(one.counts)]
    yield by_label(metrics.REQUESTS, asked)
    errors = [
        ((api.label, ERROR_NAMES.get(code, str(code))), count)
        for api, counts in sorted(figures.errors.items())
        for code, count in sorted(counts.items())
    ]
    yield MetricFamily(metrics.ERRORS, [(labels, count) for labels, count in errors])


def _network_families(broker: "Broker") -> Iterator[MetricFamily]:
    figures, connections = broker.server.figures, broker.server.connections
    yield one(metrics.BYTES_IN, figures.bytes_in)
    yield one(metrics.BYTES_OUT, figures.bytes_out)
    yield one(metrics.CONNECTIONS, len(connections))
    yield one(metrics.CONNECTIONS_ACCEPTED, figures.accepted)
    yield one(metrics.CONNECTIONS_REFUSED, figures.refused)
    waits = [("memory", figures.waits_for_memory), ("answers", figures.waits_for_answers)]
    yield by_label(metrics.THROTTLES, waits)
    yield one(metrics.REQUEST_MEMORY, broker.server.budget.used)
    yield one(metrics.PRODUCE_PURGATORY, len(broker.produce.waits))
    yield one(metrics.FETCH_PURGATORY, sum(len(connection.parked) for connection in connections))


def _record_families(figures: BrokerMetrics) -> Iterator[MetricFamily]:
    records = figures.records
    yield one(metrics.RECORDS_IN, records.records_in)
    yield one(metrics.BATCHES_IN, records.batches_in)
    yield one(metrics.PRODUCED_BYTES, records.bytes_in)
    yield one(metrics.FETCHED_BYTES, records.bytes_out)
    yield one(metrics.REPLICA_BYTES, records.replica_bytes_out)


def _disk_families(broker: "Broker") -> Iterator[MetricFamily]:
    commits = broker.group_commit
    if commits is not None:  # in memory mode there is no disk
        yield one(metrics.SYNCS, commits.durations.value())
        yield one(metrics.DISK_FREE, broker.files.free_bytes(broker.settings.data_dir))
        yield one(metrics.DISK_RESERVE, broker.reserve.reserve_bytes)
        yield one(metrics.STRAY_DIRECTORIES, broker.log_dir.strays.directories)
        yield one(metrics.STRAY_BYTES, broker.log_dir.strays.size_bytes)


def _change_families(broker: "Broker") -> Iterator[MetricFamily]:
    changes, membership = broker.figures.replication, broker.membership
    sent, copied = (0, 0) if membership is None else membership.throttles.throttled_bytes
    yield by_label(metrics.THROTTLED_BYTES, [("sent", sent), ("copied", copied)])
    yield by_label(metrics.ISR_CHANGES, [("shrink", changes.shrunk), ("expand", changes.expanded)])
    yield by_label(metrics.LEADER_CHANGES, [("gained", changes.gained), ("lost", changes.lost)])


class LogTotals:
    """Totals over all partitions, and the largest partitions by name."""

    def __init__(self, node_id: int, *, unopened: int) -> None:
        self._node_id = node_id
        self._held = self._led = self._bytes = self._segments = 0
        self._behind = self._under_min_isr = self._lag = 0
        self._offline = unopened
        self._sizes: list[tuple[int, Partition]] = []
        self._lost_markers: list[tuple[Partition, int]] = []

    def look_at(self, partitions: Iterable[Partition]) -> Iterator[None]:
        for partition in partitions:
            self._add(partition)
            yield

    def _add(self, partition: Partition) -> None:
        size = partition.size_bytes
        self._sizes.append((size, partition))
        self._held += 1
        self._bytes += size
        self._segments += len(partition.log.segments)
        self._offline += partition.failure is not None
        leadership = partition.leadership
        if leadership is None:
            return
        self._led += 1
        state = leadership.state
        self._behind += len(state.isr) < len(state.replicas)
        self._under_min_isr += len(state.isr) < min(partition.log.config.min_insync_replicas, len(state.replicas))
        doubtful = partition.doubtful_transactions()
        if doubtful and len(self._lost_markers) < metrics.PARTITIONS_SHOWN_MAX:
            self._lost_markers.append((partition, doubtful[0].first_offset))
        for follower in leadership.followers.values():
            self._lag = max(self._lag, partition.log_end_offset - max(follower.end_offset, 0))

    def families(self) -> Iterator[MetricFamily]:
        yield one(metrics.PARTITIONS, self._held)
        yield one(metrics.LEADERS, self._led)
        yield one(metrics.UNDER_REPLICATED, self._behind)
        yield one(metrics.UNDER_MIN_ISR, self._under_min_isr)
        yield one(metrics.OFFLINE_REPLICAS, self._offline)
        yield one(metrics.OFFLINE_REPLICAS_DEPRECATED, self._offline)
        yield one(metrics.REPLICA_LAG, self._lag)
        yield one(metrics.LOG_BYTES, self._bytes)
        yield one(metrics.LOG_SEGMENTS, self._segments)
        yield from self._by_partition()

    def _by_partition(self) -> Iterator[MetricFamily]:
        shown = self._sizes
        if len(shown) > metrics.PARTITIONS_SHOWN_MAX:
            shown = sorted(shown, key=lambda pair: pair[0], reverse=True)[: metrics.PARTITIONS_SHOWN_MAX]
        rows = [((partition.topic, str(partition.index)), size, partition.log) for size, partition in shown]
        yield MetricFamily(metrics.PARTITION_BYTES, [(labels, size) for labels, size, _ in rows])
        yield MetricFamily(metrics.PARTITION_START, [(labels, log.log_start_offset) for labels, _, log in rows])
        yield MetricFamily(metrics.PARTITION_END, [(labels, log.log_end_offset) for labels, _, log in rows])
        yield one(metrics.PARTITIONS_NOT_SHOWN, len(self._sizes) - len(shown))
        lost = [((one.topic, str(one.index)), offset) for one, offset in self._lost_markers]
        yield MetricFamily(metrics.LOST_MARKER, [(labels, offset) for labels, offset in lost])


def _transaction_families(broker: "Broker") -> Iterator[MetricFamily]:
    counts = dict.fromkeys(TransactionState, 0)
    now_ms = broker.clock.wall_ms()
    oldest_ms = 0
    for transaction in broker.known_transactions():
        counts[transaction.state] += 1
        if transaction.state is TransactionState.ONGOING:
            oldest_ms = max(oldest_ms, now_ms - transaction.started_ms)
    yield by_label(metrics.TRANSACTIONS, [(state.label, count) for state, count in counts.items() if count])
    yield one(metrics.OLDEST_TRANSACTION, oldest_ms / 1000)


def _cluster_families(broker: "Broker") -> Iterator[MetricFamily]:
    image = broker.image
    partitions = [state for topic in image.topics.values() for state in topic.partitions]
    is_controller = broker.membership is None or image.controller == broker.node_id
    yield one(metrics.CONTROLLER, int(is_active_controller(broker)))
    leaderless = sum(state.leader == NO_LEADER for state in partitions) if is_controller else 0
    yield one(metrics.OFFLINE_PARTITIONS, leaderless)
    yield one(metrics.OFFLINE_PARTITIONS_DEPRECATED, leaderless)
    alive = sum(known.is_live for known in image.brokers.values())
    yield one(metrics.BROKERS, alive if broker.membership is not None else 1)
    yield one(metrics.TOPICS, len(image.topics))
    yield one(metrics.CLUSTER_PARTITIONS, len(partitions))


def _store_families(broker: "Broker") -> Iterator[MetricFamily]:
    figures, membership = broker.store_figures, broker.membership
    has_session = membership is None or not membership.may_be_fenced
    ups = [(SESSION, has_session and figures.session_failure is None), (WRITE, figures.write_failure is None)]
    yield by_label(metrics.STORE_UP, [(operation, int(is_up)) for operation, is_up in ups])
    yield by_label(metrics.STORE_ERRORS, [(name, figures.errors[name]) for name in (SESSION, WRITE, READ, WATCH)])
    age = MetricFamily(metrics.SESSION_AGE, [])  # no sample on a single node, which has no session
    if membership is not None:
        age.samples.append(((), membership.session_age_ms / 1000))
    yield age
