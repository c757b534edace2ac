"""Reads one offset range of one partition as Arrow batches. Runs as a Spark task in the executors' Python workers."""

import atexit
import logging
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.client.core.errors import KafkaApiError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.client.reader.offsets import OffsetRange
from headrace.client.reader.worker_memory import freeze_modules, tune_malloc
from headrace.client.sync.client import ClientConfig, Cluster, RetryPolicy
from headrace.client.sync.fetcher import FETCH_BYTES_MIN, Fetched, OffsetOutOfRange, fetch_from
from headrace.client.sync.offsets import EARLIEST, LATEST, list_offsets
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import TopicPartition
from headrace.records.arrow.arrays import array_of, bytes_scalar
from headrace.records.arrow.decode import Columns, decode_groups
from headrace.records.transaction_filter import committed_batches

log = logging.getLogger(__name__)

# Spark's fastest batch size: 1.8 million rows per second, against 1.4 with 1,000 and 1.6 with 50,000 rows.
ROWS_PER_BATCH = 10_000

# How long a topic must be missing before it counts as deleted. A broker with stale metadata, for example after a
# restart, returns UNKNOWN_TOPIC_OR_PARTITION for topics that exist; Kafka's clients retry it for that reason.
MISSING_PATIENCE_S = 10.0

tune_malloc()

# A worker runs many tasks with many batches, so its connections stay open.
_clusters: dict[ClientConfig, Cluster] = {}


@atexit.register
def close_clusters() -> None:
    """Closes all connections; `cluster_for` opens new ones."""
    for cluster in _clusters.values():
        cluster.close()
    _clusters.clear()


class ReadSpec(NamedTuple):
    """What all tasks of a read have in common. Picklable."""

    client: ClientConfig
    read_committed: bool
    fail_on_data_loss: bool
    fetch_bytes: int
    schema: Any  # the Arrow schema that Spark expects, in its order


class DataLossError(Exception):
    """Offsets that the query has not read yet were deleted."""


class TopicGone(HeadraceError):
    """The topic has been missing for so long that it counts as deleted. Offsets from `position` on were not read."""

    retriable = True

    def __init__(self, wanted: OffsetRange, position: int) -> None:
        super().__init__(f"{wanted.partition} was deleted while it was read, at offset {position}")
        self.position = position


class NotCommittedYet(HeadraceError):
    """The leader does not serve the planned offsets, although none of them is lost. A retry continues at `position`."""

    retriable = True

    def __init__(self, wanted: OffsetRange, position: int, high_watermark: int, waited_s: float) -> None:
        super().__init__(
            f"{wanted.partition}: the leader's high watermark is {high_watermark}, and offsets {position} to "
            f"{wanted.end - 1} were planned. No record came for {waited_s:.0f} s. Nothing is skipped; the read is "
            "retried. If this persists, `headrace topics describe` shows missing replicas"
        )
        self.position = position


def cluster_for(settings: ClientConfig) -> Cluster:
    cluster = _clusters.get(settings)
    if cluster is None:
        cluster = _clusters[settings] = Cluster(settings)
    freeze_modules()
    return cluster


def read_range(plan: ReadSpec, wanted: OffsetRange) -> Iterator[Any]:
    """Yields the rows of the range in offset order. Ends when all rows were read, or are lost and `failOnDataLoss` is
    false.

    Offsets are lost only where the log does not hold them (OFFSET_OUT_OF_RANGE). An empty fetch means that the leader
    has not committed them: after a failover the high watermark of the new leader lags for a while. Raises
    DataLossError for a topic that stays missing, or TopicGone where loss is allowed.
    """
    cluster = cluster_for(plan.client)
    rows = _RowBatches(wanted.partition, plan.schema)
    position = wanted.start
    waiting = _Waiting(wanted, cluster.settings.patience_s)
    patience = RetryPolicy(cluster.settings.patience_s)
    missing = RetryPolicy(min(cluster.settings.patience_s, MISSING_PATIENCE_S))
    while position < wanted.end:
        # Closed before any other request: the response to the prefetch is in flight on the same connection.
        with closing(_fetches(plan, cluster, wanted, position)) as fetches:
            try:
                for fetched in fetches:
                    yield from rows.of(fetched, wanted)
                    position = max(position, fetched.next_position)
                    waiting.check(fetched)
                    missing.renew()
                continue
            except OffsetOutOfRange as lost:
                outside = lost
            except KafkaApiError as refusal:
                if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                _wait_for_topic(plan, cluster, wanted, position, missing)
                continue
        position = _after_loss(plan, cluster, wanted, outside, patience)


def until_gone(rows: Iterator[Any]) -> Iterator[Any]:
    """Yields the rows of a range; ends early, with a warning, if its topic is deleted."""
    try:
        yield from rows
    except TopicGone as gone:
        log.warning("%s; failOnDataLoss is false, so the query continues without the remaining records", gone)


def _wait_for_topic(plan: ReadSpec, cluster: Cluster, wanted: OffsetRange, position: int, missing: RetryPolicy) -> None:
    """Pauses before a retry; raises DataLossError or TopicGone if the topic has been missing for too long."""
    try:
        missing.wait_after(
            KafkaApiError(ErrorCode.LEADER_NOT_AVAILABLE, "no such topic"), f"fetching {wanted.partition}"
        )
    except BrokerUnreachable:
        gone = TopicGone(wanted, position)
        raise (DataLossError(str(gone)) if plan.fail_on_data_loss else gone) from None
    cluster.forget()


def _fetches(plan: ReadSpec, cluster: Cluster, wanted: OffsetRange, position: int) -> Generator[Fetched]:
    return fetch_from(
        cluster,
        wanted.partition,
        position,
        wanted.end,
        read_committed=plan.read_committed,
        bytes_max=plan.fetch_bytes,
    )


class _Waiting:
    """Limits the time in which consecutive fetches of a range may be empty."""

    def __init__(self, wanted: OffsetRange, patience_s: float) -> None:
        self._wanted, self._patience_s = wanted, patience_s
        self._since: float | None = None

    def check(self, fetched: Fetched) -> None:
        if fetched.next_position > fetched.position:
            self._since = None
            return
        now = time.monotonic()
        if self._since is None:
            self._since = now
            log.info(
                "%s: waiting at offset %d for a high watermark of %d, it is %d",
                self._wanted.partition, fetched.position, self._wanted.end, fetched.high_watermark,
            )  # fmt: skip
        elif now - self._since >= self._patience_s:
            raise NotCommittedYet(self._wanted, fetched.position, fetched.high_watermark, self._patience_s)


def _after_loss(
    plan: ReadSpec, cluster: Cluster, wanted: OffsetRange, outside: OffsetOutOfRange, patience: RetryPolicy
) -> int:
    """Returns the offset to continue at after lost offsets; raises DataLossError unless loss is allowed."""
    position = outside.position
    first, last = _edges(cluster, wanted.partition)
    if first <= position <= last:
        # The previous response came from another leader, and this one has the position.
        patience.wait_after(KafkaApiError(ErrorCode.OFFSET_NOT_AVAILABLE, str(outside)), f"fetching {wanted.partition}")
        cluster.forget()
        return position
    lost_until = min(first, wanted.end) if position < first else wanted.end
    if plan.fail_on_data_loss:
        raise DataLossError(
            f"{wanted.partition}: offsets {position} to {lost_until - 1} were deleted, {first} to {last - 1} are left. "
            "Retention, DeleteRecords or a new topic of that name removed them before they were read. "
            "Set failOnDataLoss to false to continue without them."
        )
    return lost_until


def holds(cluster: Cluster, partition: TopicPartition, position: int) -> bool:
    """Whether the log contains the position, above or below its high watermark."""
    fetches = fetch_from(cluster, partition, position, position + 1, read_committed=False, bytes_max=FETCH_BYTES_MIN)
    with closing(fetches):
        try:
            next(fetches)
        except OffsetOutOfRange:
            return False
    return True


def _edges(cluster: Cluster, partition: TopicPartition) -> tuple[int, int]:
    def ask(time: int) -> int:
        return list_offsets(cluster, {partition: time}, read_committed=False)[partition] or 0

    return cluster.patiently(f"requesting the offsets of {partition}", lambda: (ask(EARLIEST), ask(LATEST)))


class _RowBatches:
    """Converts fetched batches to rows of the wanted columns; constant columns are built once and sliced."""

    def __init__(self, partition: TopicPartition, schema: Any) -> None:
        self._schema = schema
        constants = {
            "topic": bytes_scalar(partition.topic.encode(), pa.string()),
            "partition": array_of(np.array([partition.partition], dtype=np.int32))[0],
        }
        self._constants = {name: value for name, value in constants.items() if name in schema.names}
        self._repeated: dict[str, Any] = {}
        self._rows_made = 0

    def of(self, fetched: Fetched, wanted: OffsetRange) -> Iterator[Any]:
        visible = committed_batches(fetched.batches, fetched.aborted)
        for group in decode_groups(visible, self._schema.names, ROWS_PER_BATCH):
            # The first batch may start before the position and contain deleted rows there.
            columns = group.within(fetched.position, wanted.end)
            if len(columns.offsets):
                yield self._batch(columns)

    def _batch(self, columns: Columns) -> Any:
        count = len(columns.offsets)
        if count > self._rows_made:
            self._repeated = {name: pa.repeat(value, count) for name, value in self._constants.items()}
            self._rows_made = count
        arrays = [
            columns.arrays[name] if name in columns.arrays else self._repeated[name].slice(0, count)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
