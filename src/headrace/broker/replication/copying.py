"""What a follower does with what its leader answers: append, cut, start over, learn the watermark.

Runs on the loop and waits for nothing; errors of the disk take the partition offline, as everywhere.
"""

import logging

from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.core.replica.follower import EpochEnd, truncation
from headrace.model.errors import CorruptBatch, StorageError
from headrace.records.batch import batch_crc, walk

log = logging.getLogger(__name__)


def append_copies(partition: Partition, records: memoryview, now_ms: int) -> None:
    """Append whole batches as the leader has them. Half a batch at the end is left for the next fetch.

    Checksums are checked before anything is written: what a leader's disk or a network card has changed on the way
    does not spread.
    """
    before = partition.log_end_offset
    try:
        for position, header in walk(records):
            batch = records[position : position + header.total_bytes]
            if header.crc != batch_crc(batch):
                raise CorruptBatch(f"{partition}: the batch at offset {header.base_offset} arrived damaged")
            if header.next_offset > partition.log_end_offset:
                partition.log.append_copy(batch, header, now_ms)
    except StorageError as error:
        partition.append_failed(error)
        raise
    finally:
        if partition.log_end_offset > before:
            partition.appended(partition.log_end_offset)


def cut(partitions: Partitions, partition: Partition, diverging: EpochEnd) -> None:
    """Cut to what may be common with the leader; the next fetch finds out whether it is."""
    end = truncation(partition.log.epochs, partition.log_end_offset, diverging)
    log.info(
        "%s: the leader's epoch %d ends at %d; cutting from %d to %d, watermark %d",
        partition,
        diverging.epoch,
        diverging.end_offset,
        partition.log_end_offset,
        end,
        partition.high_watermark,
    )
    try:
        partitions.truncate(partition, end)
    except StorageError as error:
        partition.append_failed(error)
        raise


def learn(partition: Partition, leader_watermark: int, leader_start: int) -> None:
    """What the leader says is committed, as far as we hold it; and what it has deleted."""
    known = min(leader_watermark, partition.log_end_offset)
    if known > partition.high_watermark:
        partition.committed_to(known)
    if leader_start > partition.log_start_offset:
        partition.move_log_start(min(leader_start, partition.high_watermark))
