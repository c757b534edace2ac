"""A data directory under random use, on a disk that crashes and fails, beside a model of what its clients were told.

One seed is one order of events: nothing here waits, sleeps or runs on a thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.removals import Removals
from headrace.core.cluster.image import TopicImage
from headrace.model.errors import DiskFull, HeadraceError, StorageError
from headrace.storage.log_dir import LogDir
from headrace.storage.retention import expired_segments
from headrace.testing import PowerLost, SimClock, SimFiles
from tests.unit.broker.partition_kit import CommitByHand, produce, state
from tests.unit.storage.log_kit import read_values

DATA = "/data"
PRODUCERS = 3
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

    def forget_after(self, end: int) -> None:
        del self.values[end:]
        for sent in self.sequences.values():
            sent[:] = [one for one in sent if one[1] < end]


class StepRemovals(Removals):
    """Background work becomes a list that the world works off when chance says so."""

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)
        self.backlog: list[Callable[[], None]] = []

    def in_background(self, work: Callable[..., None], *arguments: object) -> None:
        self.backlog.append(lambda: work(*arguments))


class StepPartitions(Partitions):
    removals: StepRemovals

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.removals = StepRemovals(self.log_dir)

    @property
    def backlog(self) -> list[Callable[[], None]]:
        return self.removals.backlog


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = SimFiles()
        self.clock = SimClock()
        self.models: dict[int, Model] = {0: Model(), 1: Model()}
        self.generation = 1  # of the topic: it is deleted and created again now and then
        self.leader_epoch = 0
        self.values_made = 0
        self.happened: list[str] = []
        self._start()

    # The broker's life

    @property
    def topic(self) -> TopicImage:
        return TopicImage("t", topic_id(self.generation), (state(leader_epoch=self.leader_epoch),) * 2, CONFIGS)

    def _start(self) -> None:
        self.commit = CommitByHand()
        self.log_dir = LogDir(self.files, DATA)
        self.log_dir.claim("cluster", 1, UUID(int=1))
        if not self.log_dir.was_clean:
            self.leader_epoch += 1
        self.partitions = StepPartitions(self.log_dir, self.clock, 1, self.commit)
        deleted = [topic_id(generation) for generation in range(self.generation)]
        self.partitions.load(SimpleNamespace(topics={"t": self.topic}), {}, deleted)  # type: ignore[arg-type]

    def restart(self) -> None:
        """A start may crash, too. After it, everything that was promised is there."""
        for _ in range(20):
            if self.random.random() < 0.3:
                self.files.lose_power_before(self.random.randrange(1, 60))
            try:
                self._start()
                break
            except PowerLost:
                self._note("crash during the start")
                self._crash_disk()
            finally:
                self.files.heal()
        else:
            raise AssertionError("the broker does not start any more")
        for index in self.models:
            self._compare_after_crash(index)

    def _crash_disk(self) -> None:
        self.files.heal()
        self.random.choice(
            [
                lambda: None,  # kill -9
                self.files.lose_power,
                lambda: self.files.lose_power(torn=Random(self.random.random())),
            ]
        )()

    def _compare_after_crash(self, index: int) -> None:
        model, partition = self.models[index], self.partitions.get("t", index)
        log = partition.log
        assert not log.holes, log.holes
        assert not any(segment.holes for segment in log.segments)
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
            self.restart()
        finally:
            self.files.heal()

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
        found = partition.offset_for_timestamp(0)
        if partition.high_watermark > partition.log_start_offset:
            assert found is not None
            assert found.offset == partition.log_start_offset

    def checkpoint(self) -> None:
        self.partitions.checkpoint()

    def work_off_backlog(self) -> None:
        while self.partitions.backlog and self.random.random() < 0.7:
            self.partitions.backlog.pop(0)()

    def delete_records(self) -> None:
        _, partition, model = self._some_partition()
        if partition.failure is None and partition.high_watermark > partition.log_start_offset:
            before = self.random.randrange(partition.log_start_offset, partition.high_watermark) + 1
            model.start_asked = max(model.start_asked, before)
            assert partition.delete_records(before) == before
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
        for _ in range(4):
            self.produce()
            self.commit.run()
        self.files.heal()
        if any(partition.failure is not None for partition in self.partitions.all()):
            self._note("offline")
            self.crash()

    def fill_the_disk(self) -> None:
        self.files.capacity_bytes = self.files._disk.used_bytes() + self.random.randrange(300)
        try:
            for _ in range(4):
                self.produce()
                self.commit.run()
        finally:
            self.files.capacity_bytes = None
        assert all(partition.failure is None for partition in self.partitions.all()), "a full disk heals"

    def stop_cleanly(self) -> None:
        self.commit.run()
        for work in self.partitions.backlog:
            work()
        self.partitions.backlog.clear()
        closing = self.partitions.close()
        try:
            closing.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("nothing to wait for")
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
        self.partitions.drop_topic(old)
        self.log_dir.settle_forgotten()
        for _ in self.partitions.follow_topic(self.topic):
            pass

    def finish(self) -> None:
        """One last round and a crash: everything is compared once more."""
        self.files.heal()
        self.commit.run()
        self.crash()

    def close(self) -> None:
        self.files.close()
