"""What a cluster promises its clients whatever happens, and what they were told so far.

Every promise has an exception of its own, so that a check that fails says which one was broken:

BrokenPromise
├── LeaderIncomplete      a new leader lacks what was acknowledged or read
├── HistoryChanged        what was acknowledged or read at an offset is not there any more, or something else is
├── TwoLeaders            in one leader epoch, two brokers lead
├── LogDamaged            a broker cannot use what it finds on its own disk
├── ReplicasDiffer        in the end, replicas differ, or hold a record twice
├── LatestTooLow          LATEST is below what was acknowledged or read before the question
├── TopicsMixed           a topic has records of another one that had its name
├── DeletedAgain          records are there whose deletion was acknowledged
├── NotServed             one broker is in trouble, and another one that could lead does not
├── NotWellAgain          a minute after the last fault, something still is not as it should be
├── TransactionOpen       the same, for a transaction that nobody ends
├── LoopBlocked           a broker that serves requests waits for its disk on the event loop
├── TransactionTorn       a reader with read_committed sees a part of a transaction, or something of an aborted one
└── OffsetLost            a group's committed offset went back

The ledger knows, for each partition, which value was acknowledged or read at which offset.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.broker.replica.partition import Partition
from headrace.model.errors import CorruptLog
from headrace.records.batch import walk
from headrace.records.control import read_marker
from headrace.records.record import decode_records
from headrace.storage.segment.corrupt_ranges import holes_in

MARKER = "marker of "  # how the value of a transaction's end begins; those of records do not begin so


class BrokenPromise(AssertionError):
    """What no fault may cause has happened."""


class LeaderIncomplete(BrokenPromise):
    pass


class HistoryChanged(BrokenPromise):
    pass


class TwoLeaders(BrokenPromise):
    pass


class LogDamaged(BrokenPromise):
    pass


class ReplicasDiffer(BrokenPromise):
    pass


class LoopBlocked(BrokenPromise):
    pass


class LatestTooLow(BrokenPromise):
    pass


class TopicsMixed(BrokenPromise):
    pass


class DeletedAgain(BrokenPromise):
    pass


class NotServed(BrokenPromise):
    pass


class NotWellAgain(BrokenPromise):
    pass


class TransactionOpen(NotWellAgain):
    pass


class TransactionTorn(BrokenPromise):
    pass


class OffsetLost(BrokenPromise):
    pass


@dataclass
class Ledger:
    """What clients of one partition know for certain."""

    acked: dict[int, str] = field(default_factory=dict)  # by offset
    seen: dict[int, str] = field(default_factory=dict)

    def certain(self) -> dict[int, str]:
        return {**self.acked, **self.seen}

    def acked_at(self, offset: int, value: str) -> None:
        self._agree(self.acked, offset, value, "acknowledged")
        self._agree(self.seen, offset, value, "acknowledged", note=False)

    def read(self, offset: int, value: str) -> None:
        self._agree(self.seen, offset, value, "read")
        self._agree(self.acked, offset, value, "read", note=False)

    @staticmethod
    def _agree(known: dict[int, str], offset: int, value: str, how: str, *, note: bool = True) -> None:
        if known.get(offset, value) != value:
            raise HistoryChanged(f"{value!r} was {how} at offset {offset}, where {known[offset]!r} was before")
        if note:
            known[offset] = value

    def check_log(self, values: dict[int, str], whose: str, broken: type[BrokenPromise]) -> None:
        for offset, value in self.certain().items():
            if values.get(offset) != value:
                raise broken(f"{whose} has {values.get(offset)!r} at offset {offset}, not {value!r}")


def check_whole(partitions: Iterable[Partition]) -> None:
    """No disk of a simulation rots. What is missing after a start would be fetched from others, so it is asked here."""
    for partition in partitions:
        for hole in holes_in(partition.log):
            if hole.next_offset > hole.base_offset:
                raise LogDamaged(f"{partition}: offsets {hole.base_offset} to {hole.next_offset - 1}: {hole.reason}")


def values_of(partition: Partition) -> dict[int, str]:
    """Everything in a log, by offset."""
    values: dict[int, str] = {}
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            piece = log.read(offset, 1 << 20, log.log_end_offset)
        except CorruptLog as error:
            raise LogDamaged(f"{partition}: {error}") from error
        if piece is None:
            break
        data = memoryview(piece.read())
        values.update(values_in(data))
        for _, header in walk(data):
            offset = header.next_offset
    return values


def values_in(data: memoryview) -> Iterator[tuple[int, str]]:
    """The records of batches with their offsets; the end of a transaction is told in words."""
    for position, header in walk(data):
        batch = data[position : position + header.total_bytes]
        if header.is_control:
            marker = read_marker(batch, header)
            assert marker is not None, "brokers write no other control batches"
            end = "commit" if marker.commits else "abort"
            yield header.base_offset, f"{MARKER}{header.producer_id}/{header.producer_epoch}: {end}"
            continue
        for record in decode_records(batch, header):
            yield record.offset, (record.value or b"").decode()
