"""The parts of the fault matrix: a disk that fails one operation, a partition on it, and a plain model of its log.

The model is a list of what the appends have returned. A partition is compared with it as a client would: records, those
of them that a `read_committed` consumer receives, and what a producer's retry gets.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from headrace.broker.replica.file_deleter import FileDeleter
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.broker.replication.follower_log import Expected, append_run, verified_batches
from headrace.config.values import LogConfig
from headrace.core.image.metadata_image import PartitionRegistration
from headrace.model.errors import DiskFull, MissingFile, StorageError
from headrace.model.ids import TopicPartition
from headrace.records.batch import BatchHeader, parse_header, patch_offset_and_epoch, walk
from headrace.records.builder import NewRecord, build_batch
from headrace.records.control import ControlType, EndMarker, build_marker_batch, read_marker
from headrace.records.record import decode_records
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.log import Log
from headrace.storage.log_types import Producer
from headrace.testing import SimFiles
from headrace.testing.simulation.clock import SimClock
from headrace.testing.simulation.disk import Folder
from headrace.testing.simulation.files import ShortWrite
from tests.unit.broker.partition_kit import ACKS_ALL, CommitByHand

Result = TypeVar("Result")

NAME = TopicPartition("t", 0)
DIRECTORY = "/data/t-0"
TOPIC_ID = UUID(int=7)
# A batch of one record takes about 85 bytes: a segment holds four, and every second one gets an index entry.
CONFIG = replace(LogConfig(), segment_bytes=350, index_interval_bytes=100)
EPOCH_MAX = 2**31 - 1
READ_BYTES = 200  # a read of about two batches: the aborted transactions are looked up many times


class Fault(StrEnum):
    ENOSPC = "ENOSPC"
    EIO = "EIO"
    EINTR = "EINTR"
    ENOENT = "ENOENT"
    SHORT_WRITE = "short write"


class Operation(NamedTuple):
    name: str
    path: str


class MatrixFiles(SimFiles):
    """A simulated disk that fails the operation with a given number, once. Looking for a name is an operation too."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Operation] = []
        self.failed: Operation | None = None
        self._at, self._fault = -1, Fault.EIO
        self._is_observed = False

    @contextmanager
    def observed(self) -> Iterator[None]:
        """The test looks at the files: its operations do not fail and are not counted."""
        self._is_observed = True
        try:
            yield
        finally:
            self._is_observed = False

    def fail_at(self, number: int, fault: Fault) -> None:
        self._at, self._fault = number, fault

    def reach(self, operation: str, path: str) -> None:
        super().reach(operation, path)
        if self._is_observed:
            return
        self.done.append(Operation(operation, path))
        if len(self.done) - 1 == self._at:
            self.failed = self.done[-1]
            raise self._error(operation, path)

    def exists(self, path: str) -> bool:
        self.reach("exists", path)
        return super().exists(path)

    def _error(self, operation: str, path: str) -> StorageError:
        """As OsFileSystem translates it."""
        text = f"{operation} {path}: {self._fault} (simulated)"
        if self._fault is Fault.SHORT_WRITE:
            return ShortWrite(text)
        if operation in ("sync", "sync_dir"):
            return StorageError(text)
        if self._fault is Fault.ENOENT:
            if operation == "remove":  # the error is true: the name is gone
                self._disk.change((*self._disk.place(path), None))
            return MissingFile(text)
        return DiskFull(text) if self._fault is Fault.ENOSPC else StorageError(text)


def can_meet(operation: Operation, fault: Fault) -> bool:
    """A lookup that finds nothing is no failure, and only an append writes bytes."""
    if fault is Fault.ENOENT:
        return operation.name != "exists"
    return fault is not Fault.SHORT_WRITE or operation.name == "append"


class Entry(NamedTuple):
    """A batch of one record, or a marker, as the append returned it."""

    offset: int
    producer_id: int
    value: str | None = None  # None: a marker
    transactional: bool = False
    aborts: bool = False
    key: str | None = None


class Committed(NamedTuple):
    records: list[tuple[int, str]]
    last_stable_offset: int


def committed(entries: list[Entry], start: int) -> Committed:
    """What a read_committed consumer receives of this log, by the definition of a transaction."""
    first_of: dict[int, int] = {}
    waiting: dict[int, list[tuple[int, str]]] = {}
    records: list[tuple[int, str]] = []
    for entry in entries:
        if entry.value is None:
            first_of.pop(entry.producer_id, None)
            decided = waiting.pop(entry.producer_id, [])
            records += [] if entry.aborts else decided
        elif entry.transactional:
            first_of.setdefault(entry.producer_id, entry.offset)
            waiting.setdefault(entry.producer_id, []).append((entry.offset, entry.value))
        else:
            records.append((entry.offset, entry.value))
    stable = min(first_of.values(), default=entries[-1].offset + 1 if entries else start)
    return Committed(sorted(one for one in records if start <= one[0] < stable), max(stable, start))


def consumed(log: Log) -> Committed:
    """What a read_committed consumer receives, by the responses that it gets."""
    log.producers.high_watermark_advanced(log.log_end_offset)
    unstable = log.producers.first_unstable_offset
    stable = log.log_end_offset if unstable is None else max(unstable, log.log_start_offset)
    records: list[tuple[int, str]] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, READ_BYTES, stable)) is not None:
        aborted = sorted(log.aborted_transactions(offset, piece), key=lambda txn: txn.first_offset)
        left_out: set[int] = set()
        for batch, header in _batches(piece.read()):
            while aborted and aborted[0].first_offset <= header.last_offset:
                left_out.add(aborted.pop(0).producer_id)
            offset = header.next_offset
            if header.is_control:
                marker = read_marker(batch, header)
                if marker is not None and not marker.commits:
                    left_out.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in left_out):
                records += _values(batch, header, log.log_start_offset)
    return Committed(records, stable)


def everything(log: Log) -> list[tuple[int, str | None]]:
    """Offset and value of every record, None for a marker."""
    found: list[tuple[int, str | None]] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        for batch, header in _batches(piece.read()):
            assert header.base_offset >= offset, f"two batches at offset {header.base_offset}"
            offset = header.next_offset
            found += [(header.base_offset, None)] if header.is_control else _values(batch, header, 0)
    return found


def _batches(data: bytes) -> Iterator[tuple[memoryview, BatchHeader]]:
    view = memoryview(data)
    for position, header in walk(view):
        yield view[position : position + header.total_bytes], header


def _values(batch: memoryview, header: BatchHeader, start: int) -> list[tuple[int, str]]:
    return [(one.offset, (one.value or b"").decode()) for one in decode_records(batch, header) if one.offset >= start]


class WaitingRemovals(FileDeleter):
    """Background work waits until the test runs it. In threads, the order of operations would not be the same."""

    def __init__(self, log_dir: LogDirectory) -> None:
        super().__init__(log_dir)
        self.waiting: list[Callable[[], None]] = []

    def in_background(self, work: Callable[..., None], *arguments: object) -> None:
        self.waiting.append(partial(work, *arguments))

    remove_in_background = in_background


class Offline(Exception):
    """The partition takes nothing more before a restart."""


@dataclass
class Model:
    """What the callers of the partition know."""

    entries: list[Entry] = field(default_factory=list)  # returned
    synced: int = 0  # below it everything is acknowledged
    start: int = 0
    start_asked: int = 0  # a deletion that failed may have happened
    in_flight: list[Entry] = field(default_factory=list)  # behind `entries`, in one append that has not returned
    former: list[Entry] = field(default_factory=list)  # before a truncation that is not on disk yet
    anew_at: int = -1  # where the log begins if that truncation, of all of it, is on disk

    @property
    def end(self) -> int:
        return self.entries[-1].offset + 1 if self.entries else 0

    def truncate(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry.offset < end]
        self.synced = min(self.synced, end)

    def deleted_to(self, offset: int) -> None:
        """The log begins at this offset, past all that was written."""
        self.entries = [Entry(one, -1, "deleted") for one in range(offset)]
        self.start = self.start_asked = offset

    def recovered(self, log: Log) -> None:
        """Goes on with what a restart has found: a prefix of what the appends wrote, with all that was synced.

        Until a truncation is on disk, a power loss may undo it.
        """
        found = everything(log)
        if self.former and log.log_start_offset == self.anew_at > 0 and self.end < self.anew_at:
            self.deleted_to(self.anew_at)
        elif self.former and log.log_start_offset < self.start:
            self.start = 0
        for history in ([*self.entries, *self.in_flight], self.former):
            prefix = [one for one in history if one.offset < log.log_end_offset]
            kept = [(one.offset, one.value) for one in prefix if one.offset >= log.log_start_offset]
            if len(prefix) == log.log_end_offset and kept == found:
                break
        else:
            raise AssertionError(f"{found} is no beginning of {self.entries}")
        assert self.synced <= log.log_end_offset
        self.entries, self.in_flight, self.former = prefix, [], []
        self.synced = self.end

    def next_sequence(self, producer_id: int) -> int:
        return sum(one.producer_id == producer_id and one.value is not None for one in self.entries)


class World:
    """One process with the partition, and the model beside it. `files` and `model` outlive the process."""

    def __init__(self, files: MatrixFiles, config: LogConfig = CONFIG, *, leader: int = 1) -> None:
        self.files, self.config, self.leader = files, config, leader
        self.model = Model()
        self.epoch = 0
        self.is_running = False
        self.commit = CommitByHand()
        self.failures: list[StorageError] = []

    # Processes

    def start(self, *, epoch: int = 0) -> None:
        """Raises StorageError where the process, or its partition, cannot start."""
        self.epoch, self.is_running = epoch, False
        self.commit = CommitByHand()
        self.log_dir = LogDirectory(self.files, "/data")
        self.log_dir.claim("cluster", 1, UUID(int=1))
        self.log_dir.begin_writing()
        if self.files.exists(DIRECTORY):
            log = self.log_dir.open(NAME, self.config, now_ms=0)
        else:
            log = self.log_dir.create(NAME, TOPIC_ID, self.config, now_ms=0)
        self.log_dir.end_recovery()
        self.hold(log)

    def hold(self, log: Log) -> None:
        self.removals = WaitingRemovals(self.log_dir)
        self.partitions = ReplicaManager(self.log_dir, SimClock(), 1, self.commit, self.removals)  # type: ignore[arg-type]
        self.partition = Partition(
            NAME.topic,
            NAME.partition,
            TOPIC_ID,
            log,
            self.state(),
            node_id=1,
            group_commit=self.commit,  # type: ignore[arg-type]
            let_go=self.removals.let_go,
        )
        self.is_running = True

    @property
    def is_online(self) -> bool:
        return self.is_running and self.partition.failure is None

    @property
    def log(self) -> Log:
        return self.partition.log

    def state(self) -> PartitionRegistration:
        return PartitionRegistration((self.leader,), (self.leader,), self.leader, self.epoch, 0)

    def adopt(self) -> None:
        """After a start: nothing acknowledged is missing, and of the rest of what was returned a prefix is there."""
        if not self.config.compacts:
            with self.files.observed():
                self.model.recovered(self.log)
        assert self.model.synced <= self.log.log_end_offset <= self.model.end
        self.model.truncate(self.log.log_end_offset)
        self.model.synced = self.model.end
        self.check()

    def check(self) -> None:
        with self.files.observed():
            check_log(self.log, self.model, compacted=self.config.compacts)

    # Operations of a broker. Each either does what it says, or raises Offline.

    def attempt(self, work: Callable[[], Result]) -> Result:
        """A failed append either leaves the log as it was, and can be retried, or takes the partition offline."""
        try:
            return work()
        except StorageError as error:
            self.failed(error)
            self.check()
            return work()

    def failed(self, error: StorageError) -> None:
        """Raises Offline unless the partition may stay online."""
        self.failures.append(error)
        if self.partition.failure is not None:
            raise Offline from error
        if not isinstance(error, DiskFull):
            raise AssertionError(f"online after {error!r}") from error

    def produce(self, producer_id: int = -1, *, transactional: bool = False, key: str | None = None) -> None:
        value, sequence = f"value {self.model.end}", self.model.next_sequence(producer_id)
        batch = _batch(value, key, producer_id, sequence, transactional)
        result = self.attempt(lambda: self.partition.append(memoryview(bytearray(batch)), ACKS_ALL, 1_000))
        self.returned(Entry(result.base_offset, producer_id, value, transactional, key=key))

    def produce_run(self, producer_id: int, count: int) -> None:
        first, sequence = self.model.end, self.model.next_sequence(producer_id)
        batches = [_batch(f"value {first + one}", None, producer_id, sequence + one, False) for one in range(count)]
        self.model.in_flight = [Entry(first + one, producer_id, f"value {first + one}") for one in range(count)]
        run = self.attempt(
            lambda: self.partition.append_run([memoryview(bytearray(one)) for one in batches], ACKS_ALL, 1_000)
        )
        assert run is not None, "the scenario leaves room for the whole run"
        assert [base_offset for base_offset, _ in run.places] == [one.offset for one in self.model.in_flight]
        self.model.entries += self.model.in_flight
        self.model.in_flight = []

    def write_internal(self, producer_id: int = -1) -> None:
        """What a coordinator appends, for itself or in a producer's transaction; without a sequence."""
        value, transactional = f"value {self.model.end}", producer_id >= 0
        batch = _batch(value, None, producer_id, -1, transactional)
        end = self.attempt(lambda: self.partition.append_internal(memoryview(bytearray(batch)), 1_000))
        self.returned(Entry(end - 1, producer_id, value, transactional))

    def end(self, producer_id: int, *, commit: bool) -> None:
        marker = EndMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0)
        end = self.attempt(
            lambda: self.partition.append_marker(marker, Producer(producer_id, 0), 1_000, uses_tv2=False)
        )
        self.returned(Entry(end - 1, producer_id, aborts=not commit))

    def copy(self, leaders: bytes, entries: list[Entry]) -> None:
        """A fetch response: what the follower does not have yet of it."""

        def append() -> None:
            try:
                end, epoch = self.log.log_end_offset, self.log.epochs.latest
                start = next((at for at, header in walk(leaders) if header.next_offset > end), None)
                if start is not None:
                    records = memoryview(bytearray(leaders))[start:]
                    for run in verified_batches(records, Expected(end, epoch, EPOCH_MAX, is_confirmed=True)):
                        append_run(self.partition, run, 1_000)
            finally:  # some of it may be in the log before another part fails
                held = sum(one.offset < self.log.log_end_offset for one in entries)
                self.model.entries, self.model.in_flight = entries[:held], entries[held:]

        self.attempt(append)

    def returned(self, entry: Entry) -> None:
        assert entry.offset == self.model.end, "offsets have no gap and none is used twice"
        self.model.entries.append(entry)

    def sync(self) -> None:
        self.commit.run()
        if self.partition.failure is not None:
            raise Offline
        self.model.synced = max(self.model.synced, self.log.recovery_point)
        self.model.former = []
        assert self.log.recovery_point == self.model.end

    def checkpoint(self) -> None:
        self.quietly(self._checkpoint)

    def _checkpoint(self) -> None:
        self.log.checkpoint()
        self.log_dir.note(NAME, self.log)
        self.log_dir.write_recovery_points()

    def quietly(self, work: Callable[[], Any]) -> bool:
        """Background work: an error is logged, and the partition goes on. Whether it succeeded."""
        try:
            work()
        except StorageError as error:
            self.failures.append(error)
            if self.partition.failure is not None:
                raise Offline from error
            self.check()
            return False
        return True

    def delete_records(self, before: int) -> None:
        """As DeleteRecords does it: acknowledged once the new log start is durable."""
        self.model.start_asked = max(self.model.start_asked, before)
        removals = self.removals
        self.partition.delete_records(before)
        paths = removals.take_let_go()
        if not self.quietly(lambda: removals.write_log_starts(paths)):
            self.partition.delete_records(before)
            removals.write_log_starts(paths)
        self.model.start = max(self.model.start, before)
        self.quietly(lambda: removals.remove(paths))

    def truncate(self, end: int) -> None:
        """What a follower does when its log differs from its leader's from this offset on."""
        self.model.synced = min(self.model.synced, end)  # the leader's history counts
        self.model.former = self.model.entries
        self.attempt(lambda: asyncio.run(self._truncate(end)))
        self.model.truncate(end)
        self.remove_in_background()

    def remove_in_background(self) -> None:
        waiting, self.removals.waiting = self.removals.waiting, []
        for work in waiting:
            self.quietly(work)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """What a follower does when its leader's log begins past its end: the records below are deleted."""
        self.model.synced = 0
        self.model.former, former_end = self.model.entries, self.model.end
        self.model.anew_at = offset
        work = lambda: asyncio.run(self.partitions.truncate_fully_and_start_at(self.partition, offset))  # noqa: E731
        try:
            work()
        except StorageError as error:
            self.failed(error)
            if self.log.log_end_offset != former_end:
                self.model.deleted_to(offset)
            self.check()
            work()
        self.model.deleted_to(offset)
        self.remove_in_background()

    async def _truncate(self, end: int) -> None:
        from headrace.broker.replication.follower_log import cut
        from headrace.core.replica.follower_truncation import EpochEndOffset

        await cut(self.partitions, self.partition, EpochEndOffset(self.epoch, end))

    def close(self) -> None:
        """A clean stop. Raises StorageError where it is none; the next start then checks every log."""
        self.log.close()
        self.log_dir.note(NAME, self.log)
        self.log_dir.mark_clean()
        self.model.synced = self.model.end


def _batch(value: str, key: str | None, producer_id: int, sequence: int, transactional: bool) -> bytes:
    fields: dict[str, Any] = {}
    if producer_id >= 0:
        fields = {"producer_id": producer_id, "producer_epoch": 0, "transactional": transactional}
        fields["base_sequence"] = sequence
    record = NewRecord(1_000, None if key is None else key.encode(), value.encode())
    return build_batch([record], **fields)


def leaders_log(entries: list[Entry], epochs: list[int]) -> bytes:
    """The bytes of these batches in their leader's log, each in its leader epoch."""
    out = bytearray()
    sequences: dict[int, int] = {}
    for entry, epoch in zip(entries, epochs, strict=True):
        if entry.value is None:
            marker = EndMarker(ControlType.ABORT if entry.aborts else ControlType.COMMIT, 0)
            batch = bytearray(
                build_marker_batch(marker, producer_id=entry.producer_id, producer_epoch=0, timestamp=1_000)
            )
        else:
            sequence = sequences.get(entry.producer_id, 0)
            sequences[entry.producer_id] = sequence + 1
            batch = bytearray(_batch(entry.value, entry.key, entry.producer_id, sequence, entry.transactional))
        patch_offset_and_epoch(memoryview(batch), entry.offset, epoch)
        out += batch
    return bytes(out)


# Checking


def check_log(log: Log, model: Model, *, compacted: bool = False) -> None:
    """The log is what the appends returned, and nothing else: records, committed records, producers, indexes."""
    assert not log.holes
    assert not any(segment.holes for segment in log.segments)
    assert model.start <= log.log_start_offset <= model.start_asked
    assert log.log_end_offset == log.active.next_offset == model.end
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(set(bases))
    assert all(segment.next_offset <= base for segment, base in zip(log.segments, bases[1:], strict=False))
    kept = [entry for entry in model.entries if entry.offset >= log.log_start_offset]
    if compacted:
        check_compacted(log, kept)
        return
    assert everything(log) == [(entry.offset, entry.value) for entry in kept]
    assert consumed(log) == committed(model.entries, log.log_start_offset)
    for entry in kept:
        piece = log.read(entry.offset, 1, log.log_end_offset)
        assert piece is not None
        assert parse_header(piece.read()).base_offset == entry.offset, "the index leads elsewhere"
    check_producers(log, model)


def check_compacted(log: Log, kept: list[Entry]) -> None:
    """Of each key the last record is there, and no record that was not appended."""
    values = {entry.offset: entry.value for entry in kept}
    found = everything(log)
    assert all(values[offset] == value for offset, value in found)
    last = {entry.key: entry.offset for entry in kept if entry.value is not None}
    assert {offset for offset, _ in found} >= set(last.values())


def check_producers(log: Log, model: Model) -> None:
    """A retry of each producer's last batch is recognized and not written."""
    last = {one.producer_id: one for one in model.entries if one.value is not None and one.producer_id in (1, 7, 8)}
    for producer_id, entry in last.items():
        if entry.offset < log.log_start_offset:
            continue
        sequence = model.next_sequence(producer_id) - 1
        batch = memoryview(bytearray(_batch(entry.value or "", None, producer_id, sequence, entry.transactional)))
        again = log.append(batch, parse_header(batch), log.epochs.latest, 1_000)
        assert again == (entry.offset, entry.offset + 1, True)


# Ends of a process


End = Callable[["World"], None]


def killed(world: World) -> None:
    """The machine runs on: everything that was written is there."""


def power_lost(world: World) -> None:
    """Only what was synced is there."""
    world.files.lose_power()


def power_lost_all_but(pattern: str) -> End:
    """What was not synced reached the disk by itself, except for the bytes of some files."""

    def lose(world: World) -> None:
        keep_all_but(world.files, pattern)
        world.files.lose_power()

    lose.__name__ = f"power_lost_all_but_{pattern}"
    return lose


def keep_all_but(files: MatrixFiles, pattern: str, path: str = "") -> None:
    folder = files._disk.find(path)
    assert isinstance(folder, Folder)
    for name, node in folder.entries.items():
        if isinstance(node, Folder):
            keep_all_but(files, pattern, f"{path}/{name}")
        elif pattern not in name:
            node.sync()
    files._disk.sync_names(folder)


def stopped(world: World) -> None:
    """A clean stop, and then the machine goes: what the clean mark vouches for is durable."""
    world.close()
    world.files.lose_power()
