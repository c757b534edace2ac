"""A data directory under random use, on a disk that crashes and fails, beside a model of what its clients were told.

One seed is one order of events: nothing here waits, sleeps or runs on a thread.
"""

import errno
import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from random import Random
from types import SimpleNamespace
from uuid import UUID

from headrace.broker.replica.file_deleter import FileDeleter
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.core.image.metadata_image import TopicImage
from headrace.model.errors import DiskFull, HeadraceError, StorageError
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.stepwise import run_through
from headrace.storage.log_retention import expired_segments
from headrace.testing import PowerLost, SimClock, SimFiles
from headrace.testing.simulation.files import OPERATIONS
from tests.unit.broker.partition_kit import CommitByHand, produce, state
from tests.unit.storage.log_kit import read_values

DATA = "/data"
PRODUCERS = 3
# Syncs that fail are ordered by themselves: they leave bytes in the page cache that are not on disk.
FAILING = tuple(sorted(OPERATIONS - {"sync", "sync_dir"}))
CONFIGS = {"internal.segment.bytes": "600", "index.interval.bytes": "100", "retention.bytes": "2500"}


def topic_id(generation: int) -> UUID:
    return UUID(int=Random(generation).getrandbits(128))


class Told:
    """A Produce that waits; what it is told becomes a promise."""

    def __init__(self, model: "Model", end: int) -> None:
        self._model, self._end = model, end

    def committed(self) -> None:
        self._model.acked_end = max(self._model.acked_end, self._end)

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        """Nothing was promised."""


@dataclass
class Model:
    """What the clients of one partition know."""

    values: list[str] = field(default_factory=list)  # at every offset, as far as it was written
    acked_end: int = 0
    start: int = 0  # below it, everything was deleted for good
    start_asked: int = 0
    sequences: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # producer → (sequence, offset) …
    truncated: "Model | None" = None  # as it was before a start without its unacknowledged records

    def forget_after(self, end: int) -> None:
        if end < len(self.values):
            self.truncated = replace(
                self,
                values=self.values[:],
                acked_end=end,
                sequences={producer: sent[:] for producer, sent in self.sequences.items()},
                truncated=None,
            )
        del self.values[end:]
        for sent in self.sequences.values():
            sent[:] = [one for one in sent if one[1] < end]

    def take_back(self, start: int, found: list[str]) -> None:
        """Unacknowledged records may come back after a power loss.

        A failed sync truncates them. If the process is killed then, the next one finds a log without them, and the
        truncation is durable with the first sync of that log: before anything else is acknowledged.
        """
        before, end = self.truncated, start + len(found)
        if before is not None and before.acked_end == self.acked_end < end and found == before.values[start:end]:
            self.values, self.sequences = before.values, before.sequences


class StepRemovals(FileDeleter):
    """Background work becomes a list that the world works off when chance says so."""

    def __init__(self, log_dir: LogDirectory) -> None:
        super().__init__(log_dir)
        self.backlog: list[Callable[[], None]] = []

    def in_background(self, work: Callable[..., None], *arguments: object) -> None:
        self.backlog.append(lambda: work(*arguments))

    remove_in_background = in_background

    def leave_over(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.remove_tree(path)


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.start_faults = Random(f"{seed} starts")  # of their own: the seeds in KEPT stay the same runs
        self.files = SimFiles()
        self.clock = SimClock()
        self.files.wall_ms = self.clock.wall_ms
        self.models: dict[int, Model] = {0: Model(), 1: Model()}
        self.generation = 1  # of the topic: it is deleted and created again now and then
        self.leader_epoch = 0
        self.values_made = 0
        self.happened: list[str] = []
        self.a_sync_fails = False
        self._start()

    # The broker's life

    @property
    def topic(self) -> TopicImage:
        return TopicImage("t", topic_id(self.generation), (state(leader_epoch=self.leader_epoch),) * 2, CONFIGS)

    def _start(self) -> None:
        self.files.handles.clear()  # a process that ended has no file open
        self.commit = CommitByHand()
        self.log_dir = LogDirectory(self.files, DATA)
        self.log_dir.claim("cluster", 1, UUID(int=1))
        if not self.log_dir.was_clean:
            self.leader_epoch += 1
        self.removals = StepRemovals(self.log_dir)
        self.partitions = ReplicaManager(self.log_dir, self.clock, 1, self.commit, self.removals)
        deleted = [topic_id(generation) for generation in range(self.generation)]
        self.partitions.load(SimpleNamespace(topics={"t": self.topic}), {}, deleted)  # type: ignore[arg-type]
        self.partitions.end_recovery()

    def restart(self) -> None:
        """A start may crash, too. After it, everything that was promised is there."""
        for _ in range(20):
            if self.random.random() < 0.3:
                self.files.lose_power_before(self.random.randrange(1, 60))
            self._order_a_fault_of_the_start()
            try:
                if self._starts():
                    break
                self._note("failed start")  # the process ends, the page cache stays
            except PowerLost:
                self._note("crash during the start")
                self._crash_disk()
            finally:
                self.files.heal()
        else:
            raise AssertionError("the broker does not start any more")
        for index in self.models:
            self._compare_after_crash(index)

    def _order_a_fault_of_the_start(self) -> None:
        if self.start_faults.random() < 0.15:
            # Not ENOENT: a start without a checkpoint knows of no deleted record, and a file system loses no file.
            error = self.start_faults.choice([errno.ENOSPC, errno.EIO])
            self.files.fail(self.start_faults.choice(FAILING), nth=self.start_faults.randrange(1, 40), error=error)

    def _starts(self) -> bool:
        """Whether the broker has started and opened every partition."""
        try:
            self._start()
        except StorageError:
            return False
        return not self.partitions.has_failed

    def _crash_disk(self) -> None:
        self.files.heal()
        crashes: list[Callable[[], None]] = [
            self.files.lose_power,
            lambda: self.files.lose_power(torn=Random(self.random.random())),
        ]
        # No kill -9 in the instant between a failed sync and the truncation of what it did not write: the page cache
        # keeps these bytes as clean, and no later process can know that they are not on disk.
        if not self.a_sync_fails:
            crashes.append(lambda: None)
        self.random.choice(crashes)()

    def _compare_after_crash(self, index: int) -> None:
        model, partition = self.models[index], self.partitions.get("t", index)
        log = partition.log
        assert not log.holes, log.holes
        assert not any(segment.holes for segment in log.segments)
        model.take_back(log.log_start_offset, read_values(log, log.log_start_offset))
        assert model.start <= log.log_start_offset <= model.start_asked, (model.start, log.log_start_offset)
        assert log.log_end_offset >= model.acked_end, "something acknowledged is lost"
        assert log.log_end_offset <= max(len(model.values), model.start_asked), "something was made up"
        model.start = model.start_asked = log.log_start_offset
        model.forget_after(log.log_end_offset)
        assert partition.high_watermark == log.log_end_offset
        model.acked_end = partition.high_watermark  # consumers see it now
        self.read_all(index)

    # What can happen

    def step(self) -> None:
        actions = [
            (self.produce, 40),
            (self.commit_round, 25),
            (self.repeat_a_batch, 6),
            (self.read_somewhere, 10),
            (self.find_by_time, 3),
            (self.checkpoint, 4),
            (self.work_off_backlog, 5),
            (self.delete_records, 3),
            (self.apply_retention, 3),
            (self.order_a_fault, 4),
            (self.fail_an_operation, 4),
            (self.fill_the_disk, 2),
            (self.stop_cleanly, 1),
            (self.crash, 3),
            (self.flip_a_bit_and_crash, 1),
            (self.recreate_topic, 1),
        ]
        action = self.random.choices([one for one, _ in actions], [weight for _, weight in actions])[0]
        self._note(action.__name__)
        if self.random.random() < 0.05:
            self.files.lose_power_before(self.random.randrange(1, 25))
        try:
            action()
        except PowerLost:
            self._note("crash in the middle of it")
            self._crash_disk()
            self.a_sync_fails = False
            self.restart()
        finally:
            self.files.heal()
        if self.removed_and_open():
            gc.collect()  # tracebacks and former processes
            assert not self.removed_and_open(), "the disk does not get the space of these segments back"

    def removed_and_open(self) -> list[str]:
        """Log files that are open and belong to no log. Between two steps no response and no sync uses them."""
        logs = [partition.log for partition in self.partitions.all()]
        ours = {id(segment.file) for log in logs for segment in log.segments}
        handles = [one for one in self.files.handles if one.is_alive and one.path.endswith(".log")]
        return [one.path for one in handles if id(one) not in ours]

    def _note(self, what: str) -> None:
        self.happened.append(what)

    def _some_partition(self) -> tuple[int, Partition, Model]:
        index = self.random.choice(list(self.models))
        return index, self.partitions.get("t", index), self.models[index]

    def _new_value(self) -> str:
        self.values_made += 1
        return f"value {self.values_made}"

    def produce(self) -> None:
        _, partition, model = self._some_partition()
        if partition.failure is not None:
            return
        base, count = partition.log_end_offset, self.random.randrange(1, 4)
        names = [self._new_value() for _ in range(count)]
        fields = {}
        producer = self.random.randrange(PRODUCERS + 1)
        if producer:
            sent = model.sequences.setdefault(producer, [])
            sequence = sent[-1][0] + 1 if sent else 0
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        del model.values[base:]
        model.values += names  # whatever becomes of it, nothing else may stand there
        self.clock.advance_ms(self.random.randrange(20))
        now_ms = self.clock.wall_ms()
        try:
            result = produce(partition, *names, timestamp=now_ms, now_ms=now_ms, **fields)
        except DiskFull:
            if partition.failure is None:
                assert partition.log_end_offset == base, "refused, and written all the same"
            return
        except StorageError:
            assert partition.failure is not None, "only a full disk heals"
            return
        assert result.base_offset == base
        if producer:
            sent += [(sequence + number, base + number) for number in range(count)]
        if result.committed:
            model.acked_end = max(model.acked_end, result.next_offset)
        else:
            partition.wait_for_commit(result.next_offset, Told(model, result.next_offset))

    def repeat_a_batch(self) -> None:
        """A client that got no answer sends again: one record a batch, so that any of them is a batch of its own."""
        _, partition, model = self._some_partition()
        producer = PRODUCERS + 1
        sent = model.sequences.setdefault(producer, [])
        base = partition.log_end_offset
        if partition.failure is not None:
            return
        value = self._new_value()
        sequence = sent[-1][0] + 1 if sent else 0
        del model.values[base:]
        model.values.append(value)
        fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        now_ms = self.clock.wall_ms()
        for _ in range(2):
            try:
                result = produce(partition, value, timestamp=now_ms, now_ms=now_ms, **fields)
            except StorageError:
                return
            assert result.base_offset == base, "a repetition has the first one's offset"
        sent.append((sequence, base))
        partition.wait_for_commit(result.next_offset, Told(model, result.next_offset))

    def commit_round(self) -> None:
        self.commit.run()

    def read_somewhere(self) -> None:
        index, partition, model = self._some_partition()
        if partition.failure is None and partition.high_watermark > partition.log_start_offset:
            offset = self.random.randrange(partition.log_start_offset, partition.high_watermark)
            assert (
                read_values(partition.log, offset, limit=partition.high_watermark)
                == model.values[offset : partition.high_watermark]
            ), f"partition {index} from {offset}"

    def read_all(self, index: int) -> None:
        partition, model = self.partitions.get("t", index), self.models[index]
        start = partition.log_start_offset
        assert read_values(partition.log, start) == model.values[start:], f"partition {index}"

    def find_by_time(self) -> None:
        _, partition, _ = self._some_partition()
        found = run_through(partition.offset_for_timestamp(0))
        if partition.high_watermark > partition.log_start_offset:
            assert found is not None
            assert found.offset == partition.log_start_offset

    def checkpoint(self) -> None:
        self.partitions.checkpoint()

    def work_off_backlog(self) -> None:
        while self.removals.backlog and self.random.random() < 0.7:
            self.removals.backlog.pop(0)()

    def work_off_all(self) -> None:
        for work in self.removals.backlog:
            work()
        self.removals.backlog.clear()

    def delete_records(self) -> None:
        _, partition, model = self._some_partition()
        if partition.failure is None and partition.high_watermark > partition.log_start_offset:
            before = self.random.randrange(partition.log_start_offset, partition.high_watermark) + 1
            model.start_asked = max(model.start_asked, before)
            assert partition.delete_records(before) == before
            removals = self.partitions.removals
            paths = removals.take_let_go()
            removals.write_log_starts(paths)
            removals.in_background(removals.remove, paths)
            model.start = before

    def apply_retention(self) -> None:
        _, partition, model = self._some_partition()
        log = partition.log
        expired = expired_segments(
            log.segments,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=partition.high_watermark,
            config=log.config,
            now_ms=self.clock.wall_ms(),
        )
        if partition.failure is None and expired.segments:
            model.start_asked = max(model.start_asked, expired.log_start_offset)
            partition.move_log_start(expired.log_start_offset)

    def order_a_fault(self) -> None:
        operation, pattern = self.random.choice([("sync", "*.log"), ("append", "*.log"), ("sync_dir", "*/t-?")])
        self.files.fail(operation, path=pattern, nth=self.random.randrange(1, 4))
        self.a_sync_fails = operation == "sync"
        for _ in range(4):
            self.produce()
            self.commit.run()
        self.files.heal()
        self.a_sync_fails = False
        if any(partition.failure is not None for partition in self.partitions.all()):
            self._note("offline")
            # Syncs what was truncated after a failed sync, which otherwise can come back: records that were not
            # acknowledged, and that the model has forgotten after a kill -9.
            self.work_off_all()
            self.crash()

    def fail_an_operation(self) -> None:
        """Any operation, also on indexes and snapshots, finds no room, no file, or a broken disk."""
        operation = self.random.choice(FAILING)
        error = self.random.choice([errno.ENOSPC, errno.ENOENT, errno.EIO])
        self.files.fail(operation, nth=self.random.randrange(1, 6), error=error)
        with suppress(StorageError):
            for _ in range(6):
                self.random.choice([self.produce, self.commit_round, self.checkpoint, self.work_off_backlog])()
        self.files.heal()
        if any(partition.failure is not None for partition in self.partitions.all()):
            self._note("offline")
            self.crash()

    def fill_the_disk(self) -> None:
        self.files.capacity_bytes = self.files.used_bytes() + self.random.randrange(300)
        try:
            for _ in range(4):
                self.produce()
                self.commit.run()
        finally:
            self.files.capacity_bytes = None
        assert all(partition.failure is None for partition in self.partitions.all()), "a full disk heals"

    def stop_cleanly(self) -> None:
        self.commit.run()
        self.work_off_all()
        closing = self.partitions.close()
        try:
            closing.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("nothing to wait for")
        for model in self.models.values():
            model.truncated = None  # a clean stop syncs every log
        self.restart()

    def crash(self) -> None:
        self._crash_disk()
        self.restart()

    def flip_a_bit_and_crash(self) -> None:
        """In a file that can be made anew from the others."""
        self._crash_disk()
        index = self.random.choice(list(self.models))
        folder = f"{DATA}/t-{index}"
        if self.files.exists(folder):
            names = [name for name in self.files.list(folder) if fnmatch(name, "*index") or fnmatch(name, "*.snapshot")]
            paths = [f"{folder}/{name}" for name in names if self.files.read(f"{folder}/{name}")]
            if paths:
                path = self.random.choice(paths)
                size = len(self.files.read(path))
                self.files.flip_bit(path, byte=self.random.randrange(size), bit=self.random.randrange(8))
        self.restart()

    def recreate_topic(self) -> None:
        """Facts change first. A crash before the folders have followed leaves them to the next start."""
        old = self.topic
        self.generation += 1
        self.models = {0: Model(), 1: Model()}
        for _ in self.partitions.delete_topic_logs(old):
            pass
        self.log_dir.flush_forgotten_checkpoints()
        for _ in self.partitions.follow_topic(self.topic):
            pass

    def finish(self) -> None:
        """One last round and a crash: everything is compared once more."""
        self.files.heal()
        self.commit.run()
        self.crash()

    def close(self) -> None:
        self.files.close()
