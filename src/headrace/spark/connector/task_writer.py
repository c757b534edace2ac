"""Writes the rows of a task: builds record batches from Arrow rows and sends them, in a transaction or only
idempotently.
"""

import random
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from headrace.client.reader.arrow_reader import cluster_for
from headrace.client.sync.client import Cluster
from headrace.client.sync.producer import BatchProducer
from headrace.client.sync.transactions import ProducerIdentity, end_transaction, init_producer
from headrace.model.errors import InvalidConfig
from headrace.model.ids import NO_EPOCH, TopicPartition
from headrace.records.arrow.encode import RecordColumns, build_section
from headrace.records.batch import TRANSACTIONAL_FLAG, BatchHeader
from headrace.records.builder import sealed
from headrace.records.compression import compress
from headrace.records.record import FORMAT_VERSION
from headrace.spark.connector.sink_rows import Routed, Router, chunks, gathered
from headrace.spark.connector.write_options import WriteOptions

# Idempotent producers outlive their tasks. A new one per task would fill the brokers' producer state.
_producers: dict[WriteOptions, BatchProducer] = {}


def write_rows(options: WriteOptions, rows: Iterable[Any]) -> int:
    """Writes all rows, waits for their acknowledgements, and returns their number."""
    cluster = cluster_for(options.client)
    producer = _producers.pop(options, None)  # if this producer fails, the next call creates a new one
    if producer is None:
        producer = BatchProducer(cluster, init_producer(cluster, None, 0), acks=options.acks)
    count = _TaskWriter(options, cluster, producer).write(rows)
    _producers[options] = producer
    return count


def write_in_transaction(
    options: WriteOptions, rows: Iterable[Any], transactional_id: str
) -> tuple[ProducerIdentity | None, int]:
    """Writes all rows in a transaction and leaves it open. Returns its owner, None if there were no rows, and their
    number.

    A failure aborts the transaction: another attempt will write these rows, and `read_committed` consumers should not
    wait.
    """
    filled = (batch for batch in rows if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None, 0
    cluster = cluster_for(options.client)
    owner = init_producer(cluster, transactional_id, options.transaction_timeout_ms)
    producer = BatchProducer(cluster, owner, acks=options.acks)
    try:
        return owner, _TaskWriter(options, cluster, producer).write(chain([first], filled))
    except BaseException:
        if producer.partitions:
            end_transaction(cluster, owner, commit=False)
        raise


class _TaskWriter:
    def __init__(self, options: WriteOptions, cluster: Cluster, producer: BatchProducer) -> None:
        self._options, self._cluster, self._producer = options, cluster, producer
        self._partition_counts: dict[str, int] = {}
        # Tasks start at random partitions; otherwise all small tasks would write to the first.
        self._router = Router(options.topic, self._partition_count, random.randrange(1 << 16))

    def write(self, rows: Iterable[Any]) -> int:
        count = 0
        for batch in gathered(rows):
            self._write_batch(batch)
            count += batch.num_rows
        self._producer.flush()
        return count

    def _write_batch(self, rows: Any) -> None:
        routed = list(self._router.route(rows, int(time.time() * 1000)))
        self._producer.add_partitions_to_transaction([one.partition for one in routed])
        options = self._options
        pending = [(one, chunks(one.columns, options.batch_bytes, options.request_bytes_max)) for one in routed]
        while pending:
            # Each request has one batch of every partition that has rows left.
            taken, pending = _next_chunks(pending)
            batches = {partition: self._build(partition, columns) for partition, columns in taken.items()}
            for request in requests(batches, options.request_bytes_max):
                self._producer.send(request)

    def _build(self, partition: TopicPartition, columns: RecordColumns) -> bytes:
        count = len(columns.values)
        section, base_timestamp, max_timestamp = build_section(columns)
        owner, codec = self._producer.owner, self._options.codec
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=NO_EPOCH,
            magic=FORMAT_VERSION,
            crc=0,
            attributes=codec | (TRANSACTIONAL_FLAG if owner.transactional_id is not None else 0),
            last_offset_delta=count - 1,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            base_sequence=self._producer.next_sequence(partition, count),
            record_count=count,
        )
        return sealed(header, compress(codec, section))

    def _partition_count(self, topic: str) -> int:
        """Returns the number of partitions, requested once per task: workers live long, and topics grow."""
        if topic not in self._partition_counts:
            found = self._cluster.patiently("finding a topic", lambda: self._cluster.topics([topic], create=True))
            if topic not in found:
                raise InvalidConfig(f"there is no topic {topic!r} at {self._options.client.bootstrap}; create it first")
            self._partition_counts[topic] = len(found[topic].leaders)
        return self._partition_counts[topic]


def requests(batches: dict[TopicPartition, bytes], bytes_max: int | None) -> Iterator[dict[TopicPartition, bytes]]:
    """Groups batches into requests of at most `bytes_max`. A larger batch is sent alone, as Kafka's producer does: its
    limit applies to records before compression and framing.
    """
    request: dict[TopicPartition, bytes] = {}
    size = 0
    for partition, batch in batches.items():
        if request and bytes_max is not None and size + len(batch) > bytes_max:
            yield request
            request, size = {}, 0
        request[partition] = batch
        size += len(batch)
    if request:
        yield request


def _next_chunks(
    pending: list[tuple[Routed, Iterator[RecordColumns]]],
) -> tuple[dict[TopicPartition, RecordColumns], list[tuple[Routed, Iterator[RecordColumns]]]]:
    taken: dict[TopicPartition, RecordColumns] = {}
    left = []
    for one, pieces in pending:
        piece = next(pieces, None)
        if piece is not None:
            taken[one.partition] = piece
            left.append((one, pieces))
    return taken, left
