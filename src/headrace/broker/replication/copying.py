"""What a follower does with what its leader answers: append, cut, start over, learn the watermark.

Runs on the loop and waits for nothing; errors of the disk take the partition offline, as everywhere.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.core.replica.follower import EpochEnd, truncation
from headrace.model.errors import CorruptBatch, StorageError
from headrace.records.batch import CONTROL_FLAG, CRC_START, LENGTH_OVERHEAD, BatchHeader, walk
from headrace.records.crc import crc32c
from headrace.storage.copies import append_copies

log = logging.getLogger(__name__)

# Small batches cost some 3 µs each to check, write and account for: other requests wait for less than a millisecond.
RUN_BATCHES_MAX = 256


class Run(NamedTuple):
    """Batches that lie one behind the other, and can be appended together."""

    batches: memoryview
    headers: list[BatchHeader]


def checked_runs(records: memoryview, held_to: int) -> Iterator[Run]:
    """What lies beyond the offset that we hold. Half a batch at the end is left for the next fetch.

    Checksums are checked before anything is handed on: what a leader's disk or a network card has changed on the way
    does not spread.
    """
    start, headers = 0, list[BatchHeader]()
    for position, header in walk(records):
        end = position + header.length + LENGTH_OVERHEAD
        if header.crc != crc32c(records[position + CRC_START : end]):
            if headers:
                yield Run(records[start:position], headers)
            raise CorruptBatch(f"the batch at offset {header.base_offset} arrived damaged")
        if header.next_offset <= held_to:
            continue
        if headers and not (_goes_on(headers[-1], header) and len(headers) < RUN_BATCHES_MAX):
            yield Run(records[start:position], headers)
            headers = []
        if not headers:
            start = position
        headers.append(header)
    if headers:
        yield Run(records[start:end], headers)


def _goes_on(last: BatchHeader, header: BatchHeader) -> bool:
    """Whether a batch belongs to the same run: data of the same epoch."""
    return (
        header.leader_epoch == last.leader_epoch
        and header.base_offset > last.last_offset
        and not (header.attributes | last.attributes) & CONTROL_FLAG
    )


def append_run(partition: Partition, run: Run, now_ms: int) -> None:
    before = partition.log_end_offset
    try:
        append_copies(partition.log, run.batches, run.headers, now_ms)
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
