"""What a writing task does: batches out of Arrow rows, to their partitions, in a transaction or only idempotent."""

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.client.blocking.cluster import Cluster
from headrace.client.blocking.producing import RawProducer
from headrace.client.blocking.transactional import Owner, end_transaction, init_producer
from headrace.model.errors import InvalidConfig
from headrace.model.ids import NO_EPOCH, TopicPartition
from headrace.records.arrow_builder import RecordColumns, build_section
from headrace.records.batch import TRANSACTIONAL_FLAG, BatchHeader
from headrace.records.builder import sealed
from headrace.records.compression import compress
from headrace.records.record import FORMAT_VERSION
from headrace.spark.reading import cluster_for
from headrace.spark.sink_options import WriteOptions
from headrace.spark.sink_rows import Routed, Router, chunks


def write_rows(options: WriteOptions, rows: Iterable[Any], transactional_id: str | None) -> tuple[Owner, int]:
    """Write everything and wait until it is there; the transaction stays open. Who wrote, and how many rows.

    A failure aborts: somebody else will write these rows again, and readers should not wait for this transaction.
    """
    cluster = cluster_for(options.client)
    owner = init_producer(cluster, transactional_id, options.transaction_timeout_ms)
    producer = RawProducer(cluster, owner, acks=options.acks)
    writer = _TaskWriter(options, cluster, producer)
    try:
        count = writer.write(rows)
    except BaseException:
        if transactional_id is not None and producer.partitions:
            end_transaction(cluster, owner, commit=False)
        raise
    return owner, count


class _TaskWriter:
    def __init__(self, options: WriteOptions, cluster: Cluster, producer: RawProducer) -> None:
        self._options, self._cluster, self._producer = options, cluster, producer
        # Tasks start at different partitions, or all small ones would fill the first.
        self._router = Router(options.topic, self._partition_count, random.randrange(1 << 16))

    def write(self, rows: Iterable[Any]) -> int:
        count = 0
        for batch in rows:
            if batch.num_rows:
                self._write_batch(batch)
                count += batch.num_rows
        self._producer.flush()
        return count

    def _write_batch(self, rows: Any) -> None:
        routed = list(self._router.route(rows, int(time.time() * 1000)))
        self._producer.begin_partitions([one.partition for one in routed])
        pending = [(one, chunks(one.columns, self._options.batch_bytes)) for one in routed]
        while pending:
            # One batch of every partition in each request, as long as there are any.
            requests, pending = _next_chunks(pending)
            if requests:
                self._producer.send(
                    {partition: self._build(partition, columns) for partition, columns in requests.items()}
                )

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
        known = self._cluster.topic(topic)
        if known is None:
            created = self._cluster.patiently("finding a topic", lambda: self._cluster.topics([topic], create=True))
            known = created.get(topic)
        if known is None:
            raise InvalidConfig(f"there is no topic {topic!r} at {self._options.client.bootstrap}; create it first")
        return len(known.leaders)


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
