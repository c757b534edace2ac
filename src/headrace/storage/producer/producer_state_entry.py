"""State of one idempotent producer in a partition, and the checks of its next batch.

Pure; performs no I/O and reads no clock. The state changes only with batches that are in the log.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.model.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from headrace.records.batch import NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL_FLAG, BatchHeader
from headrace.storage.producer.producer_snapshot_file import NONE, SnapshotRow

BATCHES_REMEMBERED = 5  # as in Kafka: clients keep at most five requests in flight, so that none older is retried
SEQUENCE_MASK = 0x7FFFFFFF  # sequences wrap from 2^31-1 to 0
NO_COORDINATOR_EPOCH = -1
COORDINATOR_EPOCH_MAX = 2**31 - 1


class BatchMetadata(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class ProducerStateEntry:
    """One producer: its epoch, its last batches (oldest first), and its open transaction if it has one."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "idle_before_ms",
        "idle_since_ms",
        "last_timestamp",
        "next_sequence",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # for five entries, a list is faster than a deque and takes a fifth of the memory
        self.batches: list[BatchMetadata] = []
        self.next_sequence = 0
        self.last_timestamp = NO_TIMESTAMP
        # When an expiry check first found that nothing was appended since the check before; None until then.
        self.idle_since_ms: int | None = None
        self.idle_before_ms = 0  # in the process that wrote the snapshot, if nothing was appended since
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NONE

    def note_append(self, timestamp: int) -> None:
        self.last_timestamp = timestamp
        self.idle_since_ms, self.idle_before_ms = None, 0

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch.

        Sequences start over, so the batches of the old epoch are removed. An open transaction stays open.
        """
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = 0

    def remember(self, batch: BatchMetadata) -> None:
        batches = self.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        batches.append(batch)
        self.next_sequence = (batch.last_sequence + 1) & SEQUENCE_MASK

    def rows(self) -> Iterable[SnapshotRow]:
        shared = (
            self.last_timestamp,
            self.coordinator_epoch,
            NONE if self.txn_first_offset is None else self.txn_first_offset,
        )
        if not self.batches:
            yield SnapshotRow(self.producer_id, self.epoch, NO_SEQUENCE, NONE, 0, *shared)
        for batch in self.batches:
            delta = batch.last_offset - batch.first_offset
            yield SnapshotRow(self.producer_id, self.epoch, batch.last_sequence, batch.last_offset, delta, *shared)


def check_unusual(entry: ProducerStateEntry | None, header: BatchHeader) -> int | None:
    """Handles every case but that of the next batch in sequence."""
    if header.base_sequence < 0:
        raise InvalidRecord(f"a batch of producer {header.producer_id} needs a sequence")
    if entry is None:
        # The producer is new here, or its state was removed with its records: any first sequence is valid.
        return None
    check_epoch(entry, header)
    if header.producer_epoch > entry.epoch:
        if header.base_sequence != 0:
            raise OutOfOrderSequence(
                f"producer {entry.producer_id} begins epoch {header.producer_epoch} at sequence "
                f"{header.base_sequence}, not at 0"
            )
    else:
        duplicate = _find_duplicate(entry, header)
        if duplicate is not None:
            return duplicate
        if header.base_sequence != entry.next_sequence:
            raise OutOfOrderSequence(
                f"producer {entry.producer_id} sent sequence {header.base_sequence} where "
                f"{entry.next_sequence} comes next"
            )
    if entry.txn_first_offset is not None and not header.attributes & TRANSACTIONAL_FLAG:
        raise InvalidTransactionState(
            f"producer {entry.producer_id} has a transaction open: this batch is outside of it"
        )
    return None


def check_epoch(entry: ProducerStateEntry, header: BatchHeader) -> None:
    if header.producer_epoch < entry.epoch:
        raise InvalidProducerEpoch(
            f"producer {entry.producer_id} writes with epoch {header.producer_epoch}, "
            f"but epoch {entry.epoch} has written here"
        )


def _find_duplicate(entry: ProducerStateEntry, header: BatchHeader) -> int | None:
    first, last = header.base_sequence, header.last_sequence
    for batch in entry.batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch.first_offset
    return None
