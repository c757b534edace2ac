"""A follower's handling of fetched data: append, truncate, restart the log, and update the high watermark.

Runs on the event loop; only truncation waits, for a thread that syncs. Disk errors take the partition offline.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from headrace.broker.replica.partition import Partition
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.core.replica.follower_truncation import EpochEndOffset, truncation
from headrace.model.errors import CorruptBatch, ErrorCode, HeadraceError, StorageError
from headrace.records.batch import CONTROL_FLAG, CRC_START, BatchHeader, walk
from headrace.records.crc import crc32c
from headrace.storage.log_append import append_batches_as_follower
from headrace.storage.segment.segment_verifier import FORMAT_VERSION

log = logging.getLogger(__name__)

# Each small batch costs about 3 µs to verify, write and account for, so a run delays other requests by less than 1 ms.
RUN_BATCHES_MAX = 256
FIRST_EPOCH = 0


class VerifiedRun(NamedTuple):
    """Contiguous batches that are appended with one write."""

    batches: memoryview
    headers: list[BatchHeader]


class Unconfirmed(Exception):
    """The batch is valid only if the leader has compared it with the batches around it, see `Expected`."""


class Diverged(HeadraceError):
    """The leader has other batches in a leader epoch that this log has, too: the metadata was restored from a backup.

    The epochs do not determine which of them are committed. The leader's are the ones that clients use.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class Expected(NamedTuple):
    """What a follower expects of the batches that it has fetched.

    A batch's offset and leader epoch are not covered by its checksum. Most batches have the next offset and the epoch
    of the previous batch. Another value may be valid: compaction leaves gaps, a new leader starts an epoch, and a
    batch that begins below the log end shows that the histories differ (`Diverged`). The follower accepts such a
    batch only after the leader has sent it twice: before the second time, the leader compares it with the batches
    around it (`sent_records.py`).
    """

    offset: int  # log end offset
    epoch: int  # leader epoch of the last batch
    leader_epoch: int  # leader epoch of the sending leader
    is_confirmed: bool = False  # the same was fetched before, in the same leader epoch

    def check(self, header: BatchHeader) -> None:
        if header.magic != FORMAT_VERSION:
            raise CorruptBatch(f"the batch at offset {header.base_offset} arrived with the format {header.magic}")
        if not self.epoch <= header.leader_epoch <= self.leader_epoch:
            raise CorruptBatch(
                f"the batch at offset {header.base_offset} arrived with leader epoch {header.leader_epoch}; "
                f"the batch before has {self.epoch}, the leader {self.leader_epoch}"
            )
        if header.next_offset <= max(self.offset, header.base_offset):
            raise CorruptBatch(f"the batch at offset {header.base_offset} arrived where {self.offset} should")
        is_first_epoch = header.leader_epoch == FIRST_EPOCH  # corruption cannot have raised it from a lower epoch
        is_new_epoch = header.leader_epoch > self.epoch and not is_first_epoch
        if (header.base_offset != self.offset or is_new_epoch) and not self.is_confirmed:
            raise Unconfirmed


def verified_batches(records: memoryview, expected: Expected) -> Iterator[VerifiedRun]:
    """Yields the runs that can be appended. Raises CorruptBatch or Unconfirmed after the last valid one."""
    start, end, headers = 0, 0, list[BatchHeader]()
    try:
        for position, header in _checked(records, expected):
            if headers and not (_goes_on(headers[-1], header) and len(headers) < RUN_BATCHES_MAX):
                yield VerifiedRun(records[start:position], headers)
                headers = []
            if not headers:
                start = position
            headers.append(header)
            end = position + header.total_bytes
    except (CorruptBatch, Unconfirmed):
        if headers:
            yield VerifiedRun(records[start:end], headers)
        raise
    if not end:
        raise CorruptBatch(f"no whole batch arrived in {len(records)} bytes for offset {expected.offset}")
    yield VerifiedRun(records[start:end], headers)


def _checked(records: memoryview, expected: Expected) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each batch that can be appended.

    A partial batch at the end is left for the next fetch. Checksums are verified before a batch is yielded, so that
    corruption by the leader's disk or by the network does not spread.
    """
    offset, epoch = expected.offset, expected.epoch
    for position, header in walk(records):
        if header.crc != crc32c(records[position + CRC_START : position + header.total_bytes]):
            raise CorruptBatch(f"the batch at offset {header.base_offset} is corrupt on arrival")
        if (header.base_offset, header.leader_epoch, header.magic) != (offset, epoch, FORMAT_VERSION):
            expected._replace(offset=offset, epoch=epoch).check(header)
        yield position, header
        offset, epoch = header.next_offset, header.leader_epoch


def _goes_on(last: BatchHeader, header: BatchHeader) -> bool:
    """Returns whether a batch can join the run: a data batch of the same leader epoch."""
    return (
        header.leader_epoch == last.leader_epoch
        and header.base_offset > last.last_offset
        and not (header.attributes | last.attributes) & CONTROL_FLAG
    )


def check_history(partition: Partition, first: BatchHeader) -> None:
    """Raises Diverged if a batch that the leader has confirmed begins below the log end offset."""
    if first.base_offset < partition.log_end_offset:
        raise Diverged(
            f"the log here ends at offset {partition.log_end_offset}, within a batch of the leader, "
            f"which begins at {first.base_offset}"
        )


def append_run(partition: Partition, run: VerifiedRun, now_ms: int) -> None:
    before = partition.log_end_offset
    try:
        append_batches_as_follower(partition.log, run.batches, run.headers, now_ms)
    except StorageError as error:
        partition.append_failed(error)
        raise
    finally:
        if partition.log_end_offset > before:
            partition.appended(partition.log_end_offset)


async def make_place(partitions: ReplicaManager, partition: Partition, first: BatchHeader) -> bool:
    """Restarts an empty log at the base offset of the fetched batch if that is below the log's start offset.

    After DeleteRecords, the leader's log start offset can lie inside a batch; `learn` applies it here. Returns False
    as `truncate_fully_and_start_at`: the batch must not be appended.
    """
    partition_log = partition.log
    start = partition_log.log_start_offset
    if partition_log.log_end_offset > start or partition_log.size_bytes or not first.base_offset < start:
        return True
    return await partitions.truncate_fully_and_start_at(partition, first.base_offset)


async def cut(partitions: ReplicaManager, partition: Partition, diverging: EpochEndOffset) -> None:
    """Truncates to the highest offset that may be common with the leader. The next fetch verifies it."""
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
        await partitions.truncate(partition, end)
    except StorageError as error:
        partition.append_failed(error)
        raise


def learn(partition: Partition, leader_watermark: int, leader_start: int) -> None:
    """Applies the leader's high watermark, limited to the log end offset, and its log start offset."""
    known = min(leader_watermark, partition.log_end_offset)
    if known > partition.high_watermark:
        partition.set_high_watermark(known)
    if leader_start > partition.log_start_offset:
        partition.move_log_start(min(leader_start, partition.high_watermark))
