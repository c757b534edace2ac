"""One log on a simulated disk, with the producers, syncs and clocks that it sees. Beside it, a model of its content.

One seed is one order of events: nothing here waits, sleeps or runs on a thread.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from uuid import UUID

from headrace.config.values import LogConfig
from headrace.model.errors import OutOfOrderSequence, StorageError
from headrace.model.ids import TopicPartition
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.control import ControlType, EndMarker
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.file_system import Durable
from headrace.storage.log import Log
from headrace.storage.log_types import LogAppendInfo, Producer
from headrace.testing import SimFiles
from tests.simulation.log_checks import check_records
from tests.simulation.log_model import (
    IDEMPOTENT,
    NO_PRODUCER,
    TRANSACTIONAL,
    LogModel,
    Outcome,
    known_producers,
    last_stable_offset,
)

NAME = TopicPartition("t", 0)
DATA = "/data"
DIRECTORY = f"{DATA}/{NAME.topic}-{NAME.partition}"
WEEK_MS = 7 * 24 * 3600 * 1000
NEVER_MS = 2**63 - 1
PRODUCER_EXPIRATION_MS = 100_000
KEYS = 8


def random_config(random: Random) -> LogConfig:
    """Small segments, so that a run of a few hundred records has all that happens to a large log."""
    policy = random.choice([{"compact"}, {"compact", "delete"}, {"delete"}])
    return replace(
        LogConfig(),
        cleanup_policy=frozenset(policy),
        segment_bytes=random.choice([350, 600, 1500]),
        index_interval_bytes=100,
        retention_bytes=random.choice([-1, 1500, 4000]),
        retention_ms=random.choice([-1, WEEK_MS, 1000]),
        delete_retention_ms=random.choice([0, 50, 100_000]),
        min_cleanable_dirty_ratio=0.0,
        min_compaction_lag_ms=random.choice([0, 0, 20]),
        max_compaction_lag_ms=random.choice([NEVER_MS, 50]),
    )


class SimulatedLog:
    """A log and what its leader does with it: appends, markers, syncs, checkpoints and reads."""

    log: Log
    log_dir: LogDirectory

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = SimFiles()
        self.wall_ms, self.monotonic_ms = 10 * WEEK_MS, 0
        self.files.wall_ms = lambda: self.wall_ms
        self.config = random_config(self.random)
        self.model = LogModel(is_compacted=self.config.compacts)
        self.leader_epoch = 0
        self.values_made = 0
        self.happened: list[str] = []
        self.backlog: list[Callable[[], None]] = []  # what a broker does in the background, in this order
        self.syncs_of_active = 0  # that have begun since the active segment became it
        self._active_at_sync = -1
        self.log_dir = self._open_directory()
        self.log_dir.end_recovery()
        self.log = self.log_dir.create(NAME, UUID(int=7), self.config, now_ms=self.wall_ms)
        self.sync()

    def _open_directory(self) -> LogDirectory:
        log_dir = LogDirectory(self.files, DATA)
        log_dir.claim("cluster", 1, UUID(int=1))
        log_dir.begin_writing()
        return log_dir

    def close(self) -> None:
        self.files.close()

    def note(self, event: str) -> None:
        self.happened.append(event)

    @property
    def last_stable_offset(self) -> int:
        return last_stable_offset(self.log.producers, self.model.high_watermark, self.log.log_start_offset)

    # ── producers ──

    def produce(self) -> None:
        model, producer_id = self.model, self.random.choice([NO_PRODUCER, NO_PRODUCER, *TRANSACTIONAL * 2, 4, 4])
        base, records = self.log.log_end_offset, self._new_records()
        batch = [(record.key or b"", record.value) for record in records]
        fields = {}
        if producer_id != NO_PRODUCER:
            producer = model.producers[producer_id]
            fields = {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.next_sequence,
            }
        try:
            appended = self._append(build_batch(records, **fields, transactional=producer_id in TRANSACTIONAL))
        except OutOfOrderSequence:
            if not model.may_be_rejected(producer_id, self.log.log_start_offset):
                raise
            self._begin_epoch(producer_id)
            return
        assert not appended.duplicate, "a new batch counts as a duplicate"
        assert appended.base_offset == base
        model.append(producer_id, ((key.decode(), None if value is None else value.decode()) for key, value in batch))
        assert self.log.log_end_offset == model.end_offset

    def _begin_epoch(self, producer_id: int) -> None:
        """As clients do whose state the log has forgotten: first they abort what is open, which may be unknown, too."""
        model = self.model
        if producer_id in model.open:
            self._append_marker(producer_id, model.producers[producer_id].epoch + 1, Outcome.ABORTED)
        else:
            model.producers[producer_id] = replace(
                model.producers[producer_id], epoch=model.producers[producer_id].epoch + 1, next_sequence=0
            )

    def _new_records(self) -> list[NewRecord]:
        return [self._new_record() for _ in range(self.random.randrange(1, 4))]

    def _new_record(self) -> NewRecord:
        self.values_made += 1
        key, value = f"k{self.random.randrange(KEYS)}", f"v{self.values_made}"
        is_tombstone = self.random.random() < 0.15
        timestamp = self.wall_ms - self.random.choice([0, 0, 0, 5, WEEK_MS])
        return NewRecord(timestamp, key.encode(), None if is_tombstone else value.encode())

    def _append(self, batch: bytes) -> LogAppendInfo:
        data = memoryview(bytearray(batch))
        return self.log.append(data, parse_header(data), self.leader_epoch, self.wall_ms)

    def resend_a_batch(self) -> None:
        """The last one of the idempotent producer, whose response was lost."""
        model = self.model
        last = max(model.offsets_of(IDEMPOTENT, 0), default=None)
        if last is None or IDEMPOTENT in model.may_be_unknown:
            return
        first = model.entries[last].batch_offset
        if first < model.start_asked:
            return
        sent = model.entries[first]
        records = [NewRecord(0, b"k0", b"x") for _ in range(first, last + 1)]
        appended = self._append(
            build_batch(records, producer_id=IDEMPOTENT, producer_epoch=sent.epoch, base_sequence=sent.sequence)
        )
        assert appended.duplicate, "a batch that was sent again is in the log twice"
        assert appended.base_offset == first

    def end_transaction(self) -> None:
        """Sometimes one that has no records, and sometimes with the epoch of the next instance."""
        candidates = list(self.model.open)
        if not candidates and self.random.random() < 0.2:
            candidates = [self.random.choice(TRANSACTIONAL)]
        if candidates:
            producer_id = self.random.choice(candidates)
            outcome = Outcome.ABORTED if self.random.random() < 0.5 else Outcome.COMMITTED
            is_fenced = self.random.random() < 0.3
            self._append_marker(producer_id, self.model.producers[producer_id].epoch + is_fenced, outcome)

    def _append_marker(self, producer_id: int, epoch: int, outcome: Outcome) -> None:
        kind = ControlType.ABORT if outcome is Outcome.ABORTED else ControlType.COMMIT
        appended = self.log.append_marker(
            EndMarker(kind, 0),
            Producer(producer_id, epoch),
            self.leader_epoch,
            self.wall_ms,
            uses_tv2=False,
        )
        assert appended.base_offset == self.model.end_offset
        self.model.append_marker(producer_id, epoch, outcome)

    # ── syncs, checkpoints, time ──

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll(self.wall_ms)

    def sync(self) -> None:
        work, end = self._begin_sync()
        for item in work:
            item.sync()
        assert self.log.synced(end)
        self.acknowledge(end)

    def _begin_sync(self) -> tuple[list[Durable], int]:
        base = self.log.active.base_offset
        self.syncs_of_active = self.syncs_of_active + 1 if base == self._active_at_sync else 1
        self._active_at_sync = base
        return self.log.take_unflushed()

    @property
    def has_durable_snapshot(self) -> bool:
        """Whether the one at the active segment is on disk: one sync lets it be written, the next one includes it."""
        segments = self.log.segments  # none while a truncation starts the log over
        return bool(segments) and self._active_at_sync == segments[-1].base_offset and self.syncs_of_active > 2

    def note_missing_snapshot(self) -> None:
        """Before something that takes the snapshots away that are not on disk.

        A snapshot is written after one sync and durable with the next. If all records of a producer are deleted in
        between, nothing else says what it has written: its next batch may be rejected.
        """
        if not self.has_durable_snapshot:
            self.model.may_be_behind |= self.model.without_records(self.log.log_start_offset)

    def sync_behind_appends(self) -> None:
        """Batches arrive while a sync is in flight, which does not cover them."""
        work, end = self._begin_sync()
        failure: StorageError | None = None
        try:
            for _ in range(self.random.randrange(3)):
                self.random.choice([self.produce, self.end_transaction])()
        except StorageError as error:
            failure = error
        for item in work:
            item.sync()
        assert self.log.synced(end)
        self.acknowledge(end)
        if failure is not None:
            raise failure

    def acknowledge(self, end: int) -> None:
        self.model.high_watermark = max(self.model.high_watermark, end)
        self.log.producers.high_watermark_advanced(self.model.high_watermark)

    def checkpoint(self) -> None:
        self.log_dir.note(NAME, self.log)
        self.log_dir.write_recovery_points()
        if self.random.random() < 0.5:
            self.log_dir.note_high_watermark(NAME, self.model.high_watermark)
            self.log_dir.write_high_watermarks()

    def work_off_backlog(self) -> None:
        while self.backlog and self.random.random() < 0.8:
            self.backlog.pop(0)()

    def advance_clocks(self) -> None:
        """Wall clocks jump, also back; monotonic ones do not."""
        self.wall_ms += self.random.choice([1, 10, 100, 100_000, WEEK_MS, -WEEK_MS, -10])
        self.wall_ms = max(self.wall_ms, WEEK_MS)
        self.monotonic_ms += self.random.choice([1, 10, 1000, 50_000])

    def expire_producers(self) -> None:
        before = set(known_producers(self.log.producers))
        self.log.producers.expire(self.monotonic_ms, PRODUCER_EXPIRATION_MS)
        expired = before - set(known_producers(self.log.producers))
        self.model.may_be_unknown |= expired
        self.model.has_expired |= expired

    # ── reads ──

    def read(self) -> None:
        """From the log start, and from an offset that may lie within a transaction."""
        start = self.log.log_start_offset
        offset = self.random.randrange(start, max(start, self.last_stable_offset) + 1)
        for first in sorted({start, offset}):
            check_records(self.log, self.model, first, self._fetch_bytes)

    def _fetch_bytes(self) -> int:
        return self.random.choice([1, 100, 300, 5000])
