"""What one simulated log has to contain: every record and marker by offset, producers, transactions, the log start.

Pure; performs no I/O. `log_checks.py` compares a log with it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from headrace.storage.producer.producer_state_manager import ProducerStateManager

NO_PRODUCER = -1
TRANSACTIONAL = (1, 2, 3)
IDEMPOTENT = 4
PRODUCERS = (*TRANSACTIONAL, IDEMPOTENT)

KeyAndValue = tuple[str, str | None]


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class Transaction:
    first_offset: int
    outcome: Outcome = Outcome.OPEN
    marker_offset: int = -1  # none yet

    def end(self, outcome: Outcome, marker_offset: int) -> None:
        self.outcome, self.marker_offset = outcome, marker_offset


@dataclass(eq=False, slots=True)
class Entry:
    """One record, or the marker that ends a transaction."""

    producer_id: int
    epoch: int
    batch_offset: int
    sequence: int = -1
    key: str = ""
    value: str | None = None
    transaction: Transaction | None = None
    marker: Outcome | None = None  # None: a record

    @property
    def is_committed_record(self) -> bool:
        in_time = self.transaction is None or self.transaction.outcome is Outcome.COMMITTED
        return self.marker is None and in_time


@dataclass(slots=True)
class ProducerModel:
    """What the next batch of a producer has to say."""

    epoch: int = 0
    next_sequence: int = 0


class LogModel:
    def __init__(self, *, is_compacted: bool) -> None:
        self._is_compacted = is_compacted
        self.entries: list[Entry] = []  # by offset, also those that are deleted or compacted away
        self.high_watermark = 0
        self.start = 0  # below it, everything is deleted for good
        self.start_asked = 0  # a deletion up to here was requested, and may come true at any time
        self.open: dict[int, Transaction] = {}  # by producer id
        self.producers = {producer_id: ProducerModel() for producer_id in PRODUCERS}
        self.may_be_unknown: set[int] = set()  # producers that the log need not know until they write again
        self.has_expired: set[int] = set()  # producers whose state expired at some time
        # Producers whose last sequence the log may not know until they write again.
        self.may_be_behind: set[int] = set()
        self.snapshots_may_be_lost = False  # by a fault that recovery cannot make up for

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    def append(self, producer_id: int, records: Iterable[KeyAndValue]) -> None:
        base, producer, transaction = self.end_offset, self.producers.get(producer_id), None
        if producer_id in TRANSACTIONAL:
            transaction = self.open.setdefault(producer_id, Transaction(base))
        for key, value in records:
            entry = Entry(producer_id, -1, base, key=key, value=value, transaction=transaction)
            if producer is not None:
                entry.epoch, entry.sequence = producer.epoch, producer.next_sequence
                producer.next_sequence += 1
            self.entries.append(entry)
        self.may_be_unknown.discard(producer_id)
        self.may_be_behind.discard(producer_id)

    def append_marker(self, producer_id: int, epoch: int, outcome: Outcome) -> None:
        transaction = self.open.pop(producer_id, None)
        if transaction is not None:
            transaction.end(outcome, self.end_offset)
        self.entries.append(Entry(producer_id, epoch, self.end_offset, transaction=transaction, marker=outcome))
        if epoch != self.producers[producer_id].epoch:
            self.producers[producer_id] = ProducerModel(epoch)
        self.may_be_unknown.discard(producer_id)

    def truncate(self, end_offset: int, log_start_offset: int) -> None:
        truncated = {entry.producer_id for entry in self.entries[end_offset:]} - {NO_PRODUCER}
        if end_offset < self.end_offset:
            del self.entries[end_offset:]
            self._replay()
        self.high_watermark = min(self.high_watermark, end_offset)
        # Compaction keeps the last batch of each producer at the end of the log. If that one is truncated, only
        # snapshots know the sequences of those before it.
        known_by_snapshots = truncated if self._is_compacted else self.without_records(log_start_offset)
        self.may_be_behind |= truncated & known_by_snapshots

    def _replay(self) -> None:
        """Producers and transactions, from the entries that are left."""
        self.open = {}
        self.producers = {producer_id: ProducerModel() for producer_id in PRODUCERS}
        for offset, entry in enumerate(self.entries):
            if entry.producer_id == NO_PRODUCER:
                continue
            if entry.marker is None:
                self.producers[entry.producer_id] = ProducerModel(entry.epoch, entry.sequence + 1)
                if entry.transaction is not None:
                    entry.transaction.end(Outcome.OPEN, -1)
                    self.open[entry.producer_id] = entry.transaction
                continue
            transaction = self.open.pop(entry.producer_id, None)
            if transaction is not None:
                transaction.end(entry.marker, offset)
            if self.producers[entry.producer_id].epoch != entry.epoch:
                self.producers[entry.producer_id] = ProducerModel(entry.epoch)

    # ── what follows from it ──

    def last_record_of(self, producer_id: int) -> int | None:
        """The offset of the producer's last record."""
        offsets = reversed(range(self.end_offset))
        return next((one for one in offsets if self._is_record_of(one, producer_id)), None)

    def _is_record_of(self, offset: int, producer_id: int) -> bool:
        entry = self.entries[offset]
        return entry.producer_id == producer_id and entry.marker is None

    def offsets_of(self, producer_id: int, start: int) -> list[int]:
        """Records and markers of the producer from `start` on."""
        return [one for one in range(start, self.end_offset) if self.entries[one].producer_id == producer_id]

    def without_records(self, log_start_offset: int) -> set[int]:
        """Producers whose records are all deleted."""
        last = {producer_id: self.last_record_of(producer_id) for producer_id in PRODUCERS}
        return {producer_id for producer_id, offset in last.items() if offset is None or offset < log_start_offset}

    def may_be_forgotten(self, producer_id: int) -> bool:
        forgotten = self.may_be_unknown | self.has_expired | self.may_be_behind
        return self.snapshots_may_be_lost or producer_id in forgotten

    def may_be_rejected(self, producer_id: int, log_start_offset: int) -> bool:
        """Whether the log may have forgotten the producer's last sequence."""
        if producer_id in self.may_be_behind:
            return True
        may_be_forgotten = self.snapshots_may_be_lost or producer_id in self.has_expired
        return may_be_forgotten and producer_id in self.without_records(log_start_offset)

    def first_left(self, transaction: Transaction, log_start_offset: int) -> int | None:
        """The transaction's first record that is not deleted."""
        offsets = range(max(transaction.first_offset, log_start_offset), self.end_offset)
        return next((one for one in offsets if self.entries[one].transaction is transaction), None)

    def last_stable_offset_at_most(self, log_start_offset: int) -> int:
        """Above it, `read_committed` consumers would read records of open transactions."""
        firsts = [self.first_left(transaction, log_start_offset) for transaction in self.open.values()]
        return min([self.high_watermark, *(first for first in firsts if first is not None)])

    def last_stable_offset_at_least(self) -> int:
        """Below it, every transaction has a marker below the high watermark."""
        return min([self.high_watermark, *(one.first_offset for one in self._undecided())])

    def _undecided(self) -> Iterator[Transaction]:
        for entry in self.entries:
            transaction = entry.transaction
            if transaction is not None and (
                transaction.outcome is Outcome.OPEN or transaction.marker_offset >= self.high_watermark
            ):
                yield transaction

    def committed(self, start: int, end: int) -> dict[int, KeyAndValue]:
        """What `read_committed` consumers read in this range of a log that is not compacted, by offset."""
        entries = enumerate(self.entries[start:end], start)
        return {offset: (one.key, one.value) for offset, one in entries if one.is_committed_record}


def last_stable_offset(producers: ProducerStateManager, high_watermark: int, log_start_offset: int) -> int:
    """As the broker computes it for a log."""
    unstable = producers.first_unstable_offset
    return high_watermark if unstable is None else max(min(unstable, high_watermark), log_start_offset)


def known_producers(producers: ProducerStateManager) -> Collection[int]:
    return {entry.producer_id for entry in producers.active()}
