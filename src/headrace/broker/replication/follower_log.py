"""What a follower does with what its leader answers: append, truncate, start over, learn the watermark.

Runs on the loop; only truncation waits, for a thread that syncs. Errors of the disk take the partition offline, as
everywhere.
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

# Small batches cost some 3 µs each to check, write and account for: other requests wait for less than a millisecond.
RUN_BATCHES_MAX = 256
FIRST_EPOCH = 0


class VerifiedRun(NamedTuple):
    """Batches that lie one behind the other, and can be appended together."""

    batches: memoryview
    headers: list[BatchHeader]


class Unconfirmed(Exception):
    """The batch is right only if the leader has checked it against those around it, see `Expected`."""


class Diverged(HeadraceError):
    """The leader has other batches in a leader epoch that the log here has, too: metadata was restored in between.

    Which of them count cannot be told from the epochs. The leader's are those that clients use.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class Expected(NamedTuple):
    """What a follower knows about the batches that it has fetched.

    Offset and leader epoch of a batch are outside its checksum. Most batches have the next offset and the epoch of the
    batch before. Any other may be right: compaction leaves gaps, a new leader begins an epoch, and a batch that begins
    before the end of the log shows that the histories differ (`Diverged`). The follower appends it, or believes it,
    once the leader has sent it twice: before the second time the leader compares it with the batches around it
    (`sent_slices.py`).
    """

    offset: int  # where the log ends
    epoch: int  # of its last batch
    leader_epoch: int  # of the leader that sends
    is_confirmed: bool = False  # this was fetched before, in the same leader epoch

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
        is_first_epoch = header.leader_epoch == FIRST_EPOCH  # no lower one can have become this one
        is_new_epoch = header.leader_epoch > self.epoch and not is_first_epoch
        if (header.base_offset != self.offset or is_new_epoch) and not self.is_confirmed:
            raise Unconfirmed


def verified_batches(records: memoryview, expected: Expected) -> Iterator[VerifiedRun]:
    """What can be appended. Raises CorruptBatch or Unconfirmed behind what is good."""
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
    """Position and header of each batch that can be appended. Half a batch at the end is left for the next fetch.

    Checksums are checked before anything is handed on: what a leader's disk or a network card has changed on the way
    does not spread.
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
    """Whether a batch belongs to the same run: data of the same epoch."""
    return (
        header.leader_epoch == last.leader_epoch
        and header.base_offset > last.last_offset
        and not (header.attributes | last.attributes) & CONTROL_FLAG
    )


def check_history(partition: Partition, first: BatchHeader) -> None:
    """Raises Diverged if a batch that the leader has confirmed begins within what the log has."""
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
    """Begins an empty log at the base offset of the fetched batch if that is below the offset of the log.

    The leader's log start offset lies inside the batch then, after DeleteRecords; `learn` sets it here. False as for
    `truncate_fully_and_start_at`: the batch must not be appended.
    """
    partition_log = partition.log
    start = partition_log.log_start_offset
    if partition_log.log_end_offset > start or partition_log.size_bytes or not first.base_offset < start:
        return True
    return await partitions.truncate_fully_and_start_at(partition, first.base_offset)


async def cut(partitions: ReplicaManager, partition: Partition, diverging: EpochEndOffset) -> None:
    """Truncate to what may be common with the leader; the next fetch finds out whether it is."""
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
    """What the leader says is committed, as far as we hold it; and what it has deleted."""
    known = min(leader_watermark, partition.log_end_offset)
    if known > partition.high_watermark:
        partition.set_high_watermark(known)
    if leader_start > partition.log_start_offset:
        partition.move_log_start(min(leader_start, partition.high_watermark))
