"""Metrics of the groups that this broker coordinates: states and consumer lag.

Lag is computed from the replicas on this broker. A partition without a replica here is counted as unknown; REST
(`/api/v1/groups/{group}/lag`) requests its lag from the leader.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.runtime.cooperative import run_in_slices
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.telemetry import broker_metrics as metrics
from headrace.telemetry.metrics import MetricFamily, by_label, one

if TYPE_CHECKING:
    from headrace.broker.server import Broker


class Lag(NamedTuple):
    records: int = 0
    seconds: float = 0.0


async def group_families(broker: "Broker") -> list[MetricFamily]:
    report = GroupReport(broker)
    await run_in_slices(report.look_at(broker.known_group_machines()))
    return list(report.families())


class GroupReport:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._now_ms = broker.clock.wall_ms()
        self._states: Counter[str] = Counter()
        self._lags: dict[tuple[str, str], Lag] = {}
        self._unknown = 0

    def look_at(self, machines: list[GroupCoordinatorShard]) -> Iterator[None]:
        for machine in machines:
            for listing in machine.listings():
                self._states[listing.state] += 1
            for group_id in list(machine.offsets.groups()):
                self._add(machine, group_id)
                yield

    def _add(self, machine: GroupCoordinatorShard, group_id: str) -> None:
        from headrace.storage.timestamp_lookup import time_of_batch_at  # imported only if there are groups

        for (topic, index), committed in machine.offsets.of_group(group_id).items():
            partition = self._broker.partitions.held(topic, index)
            if partition is None:
                self._unknown += topic in self._broker.image.topics
                continue
            at = max(committed.offset, partition.log_start_offset)
            records = max(partition.high_watermark - at, 0)
            began_ms = time_of_batch_at(partition.log, at) if records else None
            seconds = max(self._now_ms - began_ms, 0) / 1000 if began_ms is not None else 0.0
            known = self._lags.get((group_id, topic), Lag())
            self._lags[group_id, topic] = Lag(known.records + records, max(known.seconds, seconds))

    def families(self) -> Iterator[MetricFamily]:
        rows = sorted(self._lags.items(), key=lambda row: row[1].records, reverse=True)
        shown = rows[: metrics.GROUP_ROWS_SHOWN_MAX]
        yield by_label(metrics.GROUPS, sorted(self._states.items()))
        yield MetricFamily(metrics.GROUP_LAG, [(labels, lag.records) for labels, lag in shown])
        yield MetricFamily(metrics.GROUP_LAG_SECONDS, [(labels, lag.seconds) for labels, lag in shown])
        yield one(metrics.GROUP_ROWS_NOT_SHOWN, len(rows) - len(shown))
        yield one(metrics.GROUP_LAG_UNKNOWN, self._unknown)
