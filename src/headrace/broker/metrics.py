"""Counters of a broker. They are incremented during requests and read at a scrape.

Values that can be computed at a scrape (sizes, offsets, delayed operations) are not counted here, see
`broker/reporting/broker_report.py`. Only the event loop writes the counters.
"""

from collections import Counter
from typing import TYPE_CHECKING

from headrace.core.image.deltas import MetadataDelta, PartitionsChanged
from headrace.protocol.api import ApiKey
from headrace.telemetry.broker_metrics import REQUESTS
from headrace.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from headrace.broker.replica.replica_manager import ReplicaManager


class NetworkMetrics:
    """Totals of all connections."""

    __slots__ = ("accepted", "bytes_in", "bytes_out", "refused", "waits_for_answers", "waits_for_memory")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = 0
        self.accepted = self.refused = 0
        self.waits_for_memory = self.waits_for_answers = 0


class RecordMetrics:
    """Records appended for producers, and bytes sent to consumers and followers."""

    __slots__ = ("batches_in", "bytes_in", "bytes_out", "records_in", "replica_bytes_out")

    def __init__(self) -> None:
        self.records_in = self.batches_in = self.bytes_in = 0
        self.bytes_out = self.replica_bytes_out = 0

    def took_in(self, records: int, size: int, batches: int = 1) -> None:
        """Counts batches of a producer."""
        self.batches_in += batches
        self.records_in += records
        self.bytes_in += size


class ReplicationMetrics:
    """Changes of ISRs and leaders, from metadata events."""

    __slots__ = ("expanded", "gained", "lost", "shrunk")

    def __init__(self) -> None:
        self.expanded = self.shrunk = self.gained = self.lost = 0

    def follow(self, event: MetadataDelta, partitions: "ReplicaManager", node_id: int) -> None:
        """Counts the changes of an event. Call before the partitions apply it, while they have the former state."""
        if not isinstance(event, PartitionsChanged):
            return
        for index in event.indexes:
            before = partitions.held(event.topic.topic_id, index)
            if before is None:
                continue
            after = event.topic.partitions[index]
            if after.leader != before.leader:
                self.gained += after.leader == node_id
                self.lost += before.leader == node_id
            if after.leader == node_id:
                self.expanded += len(set(after.isr) - set(before.isr))
                self.shrunk += len(set(before.isr) - set(after.isr))


class BrokerMetrics:
    """Counters of request handlers. Connections are counted by the server (`NetworkMetrics`)."""

    def __init__(self) -> None:
        self.requests = {api: Histogram(REQUESTS.bounds) for api in ApiKey}
        # Occurrences of each error code in responses. Only codes of `ErrorCode` are ever sent.
        self.errors: dict[ApiKey, Counter[int]] = {api: Counter() for api in ApiKey}
        self.records = RecordMetrics()
        self.replication = ReplicationMetrics()
