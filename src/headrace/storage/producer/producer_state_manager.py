"""States of the idempotent producers of a partition: detects duplicates and invalid sequences, tracks transactions.

Pure; performs no I/O and reads no clock. `check` and the other checks read; only `applied` and its variants change
the state, after an append and during recovery, from batch headers alone. `producer_snapshot_file.py` has the file
format.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.model.errors import CoordinatorFenced, InvalidProducerEpoch, RequestError
from headrace.records.batch import NO_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader
from headrace.storage.producer.producer_snapshot_file import SnapshotRow, decode_snapshot, encode_snapshot
from headrace.storage.producer.producer_state_entry import (
    COORDINATOR_EPOCH_MAX,
    NO_COORDINATOR_EPOCH,
    SEQUENCE_MASK,
    BatchMetadata,
    ProducerStateEntry,
    check_epoch,
    check_unusual,
)


class CompletedTxn(NamedTuple):
    """A transaction that ended with a marker. An aborted one becomes an entry of the `.txnindex`."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    last_stable_offset: int  # last stable offset once this transaction has ended
    aborted: bool


class ProducerStateManager:
    """The producers of one partition. `first_unstable_offset` is the first undecided offset, None if there is none."""

    __slots__ = ("_checked_ms", "_entries", "_ongoing", "_unreplicated", "first_unstable_offset")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}
        # First offset → producer, ascending, because transactions begin in log order.
        self._ongoing: dict[int, int] = {}
        # First offset → offset of the marker, until the high watermark has passed the marker: before that, a new leader
        # might not have the marker.
        self._unreplicated: dict[int, int] = {}
        self.first_unstable_offset: int | None = None
        self._checked_ms: int | None = None  # when `expire` was called last

    def __len__(self) -> int:
        return len(self._entries)

    def active(self) -> Collection[ProducerStateEntry]:
        return self._entries.values()

    def highest_id(self, limit: int) -> int:
        """Returns the highest producer id up to `limit`; -1 if there is none."""
        highest = max(self._entries, default=-1)
        return highest if highest <= limit else max((one for one in self._entries if one <= limit), default=-1)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._entries.get(producer_id)

    # ── Checks ──

    def check(self, header: BatchHeader) -> int | None:
        """Returns None for a batch to append, the base offset of a duplicate, or raises."""
        entry = self._entries.get(header.producer_id)
        if (
            entry is not None
            and header.base_sequence == entry.next_sequence
            and header.producer_epoch == entry.epoch
            and (entry.txn_first_offset is None or header.attributes & TRANSACTIONAL_FLAG)
        ):
            return None
        return check_unusual(entry, header)

    def check_without_sequence(self, header: BatchHeader) -> None:
        """Checks a batch that a coordinator writes in a producer's transaction: only the epoch fences it."""
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            check_epoch(entry, header)

    def check_marker(
        self,
        header: BatchHeader,
        coordinator_epoch: int,
        *,
        uses_tv2: bool,
        newest_coordinator_epoch: int = COORDINATOR_EPOCH_MAX,
    ) -> None:
        """Rejects a marker from a fenced coordinator, one that is late, or one with an epoch that no coordinator has.

        `newest_coordinator_epoch` is the highest that any coordinator has. A stored epoch above it is invalid: it was
        written before markers were checked, or `__transaction_state` was re-created or restored since. It fences
        nothing, and an operator may repeat it, because tools send the epoch that DescribeProducers returned.

        With transactions v2 the coordinator bumps the epoch before it writes the marker (`uses_tv2`): a marker with
        the epoch of the open transaction belongs to an earlier one. If none is open, it is a retry of the same
        marker, which changes nothing.
        """
        entry = self._entries.get(header.producer_id)
        stored_epoch = NO_COORDINATOR_EPOCH if entry is None else entry.coordinator_epoch
        epoch_max = max(newest_coordinator_epoch, stored_epoch)
        if not 0 <= coordinator_epoch <= epoch_max:
            raise RequestError(f"coordinator epoch {coordinator_epoch} is not between 0 and {epoch_max}")
        if entry is None:
            return
        check_epoch(entry, header)
        if uses_tv2 and header.producer_epoch == entry.epoch and entry.txn_first_offset is not None:
            raise InvalidProducerEpoch(
                f"the marker of producer {entry.producer_id} has epoch {entry.epoch}, as its open transaction"
            )
        if coordinator_epoch < stored_epoch <= newest_coordinator_epoch:
            raise CoordinatorFenced(f"coordinator epoch {coordinator_epoch} is older than {stored_epoch}")

    # ── Changes ──

    def applied(self, header: BatchHeader) -> None:
        """Applies a data batch that is in the log at the offsets in its header."""
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerStateEntry(producer_id, header.producer_epoch)
        elif header.producer_epoch != entry.epoch:
            entry.begin_epoch(header.producer_epoch)
        base_offset = header.base_offset
        entry.remember(
            BatchMetadata(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
            )
        )
        entry.note_append(header.max_timestamp)
        if header.attributes & TRANSACTIONAL_FLAG and entry.txn_first_offset is None:
            entry.txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
            self._find_first_unstable()

    def ended_by(self, header: BatchHeader, *, aborted: bool) -> CompletedTxn | None:
        """Returns the transaction that a marker with this header ends; None if it has no records here.

        Changes nothing.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.txn_first_offset is None:
            return None
        first_offset = entry.txn_first_offset
        stable = next((first for first in self._ongoing if first != first_offset), header.base_offset + 1)
        return CompletedTxn(header.producer_id, first_offset, header.base_offset, stable, aborted)

    def applied_marker(self, header: BatchHeader, *, aborted: bool, coordinator_epoch: int) -> CompletedTxn | None:
        """Applies a marker that is in the log. Returns None if its transaction has no records here."""
        ended = self.ended_by(header, aborted=aborted)
        entry = self._entry_of_marker(header)
        entry.coordinator_epoch = coordinator_epoch
        if ended is not None:
            entry.txn_first_offset = None
            self._ongoing.pop(ended.first_offset, None)
            self._unreplicated[ended.first_offset] = header.base_offset
            self._find_first_unstable()
        return ended

    def applied_emptied_marker(self, header: BatchHeader) -> None:
        """Applies the epoch of a marker whose record compaction has removed, together with its transaction."""
        self._entry_of_marker(header)

    def applied_lost_abort(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        """Ends a transaction whose abort marker is unreadable, by its entry in the index of aborted transactions."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.txn_first_offset is None or entry.txn_first_offset > marker_offset:
            return
        self._ongoing.pop(entry.txn_first_offset, None)
        entry.txn_first_offset = None
        self._unreplicated[first_offset] = marker_offset
        self._find_first_unstable()

    def _entry_of_marker(self, header: BatchHeader) -> ProducerStateEntry:
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerStateEntry(header.producer_id, header.producer_epoch)
            self._entries[header.producer_id] = entry
        elif header.producer_epoch != entry.epoch:
            entry.begin_epoch(header.producer_epoch)
        entry.note_append(header.max_timestamp)
        return entry

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Makes the markers below the high watermark final: every in-sync replica has them."""
        if not self._unreplicated:
            return
        decided = [first for first, marker in self._unreplicated.items() if marker < high_watermark]
        for first in decided:
            del self._unreplicated[first]
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first = next(iter(self._ongoing), None)
        if self._unreplicated:
            undecided = min(self._unreplicated)
            first = undecided if first is None else min(first, undecided)
        self.first_unstable_offset = first

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Removes producers that have appended nothing for `expiration_ms`; returns how many. Called regularly.

        `now_ms` is of a monotonic clock: a jump of the wall clock would remove producers that are still retrying.
        Record timestamps do not measure idle time: after a back-fill with old ones a retry would be appended twice.
        The time is measured from the first check that finds a producer idle, so it is exact to one check interval and
        never too short. A snapshot has the time up to the last check, and a log that is opened continues from there.
        """
        self._checked_ms = now_ms
        expired = [entry.producer_id for entry in self._entries.values() if _is_expired(entry, now_ms, expiration_ms)]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Removes all states of a truncated log.

        The caller loads the newest remaining snapshot and replays from there.
        """
        self._entries.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.first_unstable_offset = None

    def idle_ms(self) -> dict[int, int]:
        """Returns the idle times at the last check, without producers that had appended since the check before."""
        found = {entry.producer_id: _idle_ms(entry, self._checked_ms) for entry in self._entries.values()}
        return {producer_id: idle for producer_id, idle in found.items() if idle}

    def restore_idle(self, idle_ms: Mapping[int, int]) -> None:
        """Restores the idle times of the snapshot that was loaded, before the batches after it are applied."""
        for producer_id, idle in idle_ms.items():
            entry = self._entries.get(producer_id)
            if entry is not None:
                entry.idle_before_ms = max(idle, 0)

    # ── Snapshots ──

    def rows(self) -> list[SnapshotRow]:
        return [row for entry in self._entries.values() for row in entry.rows()]

    def to_snapshot(self) -> bytes:
        return encode_snapshot(self.rows())

    @classmethod
    def from_snapshot(cls, data: bytes) -> "ProducerStateManager":
        return cls.from_rows(decode_snapshot(data))

    @classmethod
    def from_rows(cls, rows: Iterable[SnapshotRow]) -> "ProducerStateManager":
        states = cls()
        for row in rows:
            # otherwise of a transactional batch without a producer, whose transaction no marker could end
            if row.producer_id >= 0:
                states._load(row)
        ongoing = {
            entry.txn_first_offset: entry.producer_id
            for entry in states._entries.values()
            if entry.txn_first_offset is not None
        }
        states._ongoing = dict(sorted(ongoing.items()))
        states._find_first_unstable()
        return states

    def _load(self, row: SnapshotRow) -> None:
        entry = self._entries.get(row.producer_id)
        if entry is None:
            entry = self._entries[row.producer_id] = ProducerStateEntry(row.producer_id, row.epoch)
        elif entry.epoch != row.epoch:
            entry.begin_epoch(row.epoch)
        entry.last_timestamp = row.last_timestamp
        entry.coordinator_epoch = row.coordinator_epoch
        entry.txn_first_offset = row.txn_first_offset if row.txn_first_offset >= 0 else None
        if row.last_offset >= 0:
            has_sequence = row.last_sequence != NO_SEQUENCE
            first = (row.last_sequence - row.offset_delta) & SEQUENCE_MASK if has_sequence else NO_SEQUENCE
            entry.remember(BatchMetadata(first, row.last_sequence, row.last_offset - row.offset_delta, row.last_offset))


def _is_expired(entry: ProducerStateEntry, now_ms: int, expiration_ms: int) -> bool:
    if entry.txn_first_offset is not None:
        return False
    if entry.idle_since_ms is None or entry.idle_since_ms > now_ms:
        entry.idle_since_ms = now_ms - entry.idle_before_ms
    return now_ms - entry.idle_since_ms >= expiration_ms


def _idle_ms(entry: ProducerStateEntry, checked_ms: int | None) -> int:
    if entry.idle_since_ms is None or checked_ms is None:
        return entry.idle_before_ms
    return max(checked_ms - entry.idle_since_ms, 0)
