"""What happens in the background: promises have deadlines, old segments go, and one bad log stops nobody's care."""

import errno
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.log.log_manager import LogManager
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.broker.scheduler import Scheduler
from headrace.broker.server import Broker
from headrace.config.settings import Settings
from headrace.core.image.metadata_image import TopicImage
from headrace.model.errors import CorruptLog, DiskFull, StorageError
from headrace.model.ids import TopicPartition
from headrace.records.batch import HEADER, batch_crc, parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import RATIO_FREE_BYTES, Codec
from headrace.records.control import ControlType, EndMarker
from headrace.storage.cleaner.cleaner import Cleaned, Cleaner
from headrace.storage.directory.checkpoint_files import HIGH_WATERMARKS
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.stepwise import Task
from headrace.storage.log_types import Producer
from headrace.storage.segment.index_rebuild import IndexRebuilding
from headrace.testing import SimClock, SimFiles
from tests.unit.broker.connection_kit import until
from tests.unit.broker.partition_kit import CommitByHand, produce, state, values_of
from tests.unit.storage.test_log_transactions import ABORT, end, write

DATA = "/data"
DAY_MS = 86_400_000
SEGMENTS = {"internal.segment.bytes": "400"}


class Kit:
    """As much of a broker as its housekeeper sees."""

    def __init__(self, files: SimFiles, configs: dict[str, str] | None = None, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.files = files
        self.membership: object | None = None
        self.settings = Settings(data_dir=DATA, broker_configs=named)
        self.clock = SimClock()
        self.log_dir = LogDirectory(files, DATA)
        self.log_dir.claim("cluster", 1, UUID(int=1))
        self.commit = CommitByHand()
        self.partitions = ReplicaManager(self.log_dir, self.clock, 1, self.commit)  # type: ignore[arg-type]
        topic = TopicImage("t", UUID(int=7), (state(),) * 2, {**SEGMENTS, **(configs or {})})
        self.partitions.load(SimpleNamespace(topics={"t": topic}), {}, ())  # type: ignore[arg-type]
        self.keeper = LogManager(cast(Broker, self))
        self.produce = SimpleNamespace(expired=[], expire=lambda now_ms: self.produce.expired.append(now_ms))
        self.housekeeper = Scheduler(cast(Broker, self), self.produce)  # type: ignore[arg-type]

    def write(self, count: int, index: int = 0, **fields: Any) -> None:
        partition = self.partitions.get("t", index)
        for _ in range(count):
            now_ms = self.clock.wall_ms()
            produce(partition, f"value {partition.log_end_offset}", timestamp=now_ms, now_ms=now_ms, **fields)
        self.commit.run()

    def write_keyed(self, count: int, index: int = 0) -> None:
        for number in range(count):
            records = [NewRecord(self.clock.wall_ms(), b"key", b"value %d" % number)]
            batch = memoryview(bytearray(build_batch(records)))
            self.partitions.get("t", index).append(batch, -1, self.clock.wall_ms())
        self.commit.run()

    def write_unreadable(self, codec: int) -> None:
        """A batch with a valid checksum whose record exceeds the decompression limit, or has this codec."""
        value = bytes(RATIO_FREE_BYTES + 1)
        batch = bytearray(build_batch([NewRecord(self.clock.wall_ms(), b"key", value)], codec=Codec.ZSTD))
        header = parse_header(batch)
        HEADER.pack_into(batch, 0, *header._replace(attributes=codec))
        HEADER.pack_into(batch, 0, *header._replace(attributes=codec, crc=batch_crc(batch)))
        partition = self.partitions.get("t", 0)
        partition.log.append(memoryview(batch), parse_header(batch), 0, self.clock.wall_ms())
        partition.appended(partition.log_end_offset)
        self.commit.run()

    def end_transaction(self, producer_id: int) -> None:
        marker, producer = EndMarker(ControlType.ABORT, 0), Producer(producer_id, 0)
        self.partitions.get("t", 0).append_marker(marker, producer, self.clock.wall_ms(), uses_tv2=False)
        self.commit.run()

    def log_files(self, index: int = 0) -> list[str]:
        return [name for name in self.files.list(f"{DATA}/t-{index}") if name.endswith(".log")]

    async def removed(self) -> None:
        await self.partitions.removals.finish()


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


# Retention


async def test_old_segments_go_and_their_files_with_them(files: SimFiles) -> None:
    kit = Kit(files, {"retention.ms": str(DAY_MS)})
    kit.write(20)
    kit.clock.advance_ms(DAY_MS // 2)
    kit.write(20)
    kit.clock.advance_ms(DAY_MS // 2 + 1)
    await kit.keeper.apply_retention()
    await kit.removed()
    partition = kit.partitions.get("t", 0)
    assert 16 <= partition.log_start_offset <= 20
    assert values_of(partition, partition.log_start_offset)[-1] == "value 39"
    assert len(kit.log_files()) == len(partition.log.segments)


async def test_when_everything_is_old_a_new_segment_takes_over_and_offsets_go_on(files: SimFiles) -> None:
    kit = Kit(files, {"retention.ms": "1000"})
    kit.write(20)
    kit.clock.advance_ms(2_000)
    await kit.keeper.apply_retention()
    await kit.removed()
    partition = kit.partitions.get("t", 0)
    assert (partition.log_start_offset, partition.log_end_offset, partition.size_bytes) == (20, 20, 0)
    kit.write(1)
    assert values_of(partition, 20) == ["value 20"]


async def test_a_log_that_is_too_large_loses_its_oldest_segments(files: SimFiles) -> None:
    kit = Kit(files, {"retention.bytes": "1000"})
    kit.write(40)
    await kit.keeper.apply_retention()
    await kit.removed()
    partition = kit.partitions.get("t", 0)
    assert 1_000 <= partition.size_bytes < 1_400
    assert values_of(partition, partition.log_start_offset)[-1] == "value 39"


async def test_retention_waits_for_the_archive_and_then_goes_on(files: SimFiles) -> None:
    kit = Kit(files, {"retention.ms": "1000", "archive.before.delete": "true"})
    kit.write(40)
    kit.clock.advance_ms(2_000)
    partition = kit.partitions.get("t", 0)
    await kit.keeper.apply_retention()
    assert partition.log_start_offset == 0
    partition.log.config = replace(partition.log.config, archive_until=frozenset({"0:30", "1:99"}))
    await kit.keeper.apply_retention()
    assert 20 < partition.log_start_offset <= 30
    partition.log.config = replace(partition.log.config, archive_before_delete=False)
    await kit.keeper.apply_retention()
    assert partition.log_start_offset == 40


async def test_retention_leaves_an_open_transaction_alone_until_it_is_decided(files: SimFiles) -> None:
    """Its marker would otherwise end a transaction whose records are gone, and nobody would know where it began."""
    kit = Kit(files, {"retention.ms": "1000"})
    kit.write(20)
    kit.write(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    kit.write(20)
    kit.clock.advance_ms(2_000)
    await kit.keeper.apply_retention()
    partition = kit.partitions.get("t", 0)
    assert 0 < partition.log_start_offset <= 20, "what lies before it goes"
    assert partition.last_stable_offset == 20
    kit.end_transaction(7)
    kit.clock.advance_ms(2_000)
    await kit.keeper.apply_retention()
    await kit.removed()
    assert (partition.log_start_offset, partition.log_end_offset) == (42, 42)


async def test_expired_records_do_not_come_back_after_a_power_cut(files: SimFiles) -> None:
    kit = Kit(files, {"retention.bytes": "1000"})
    kit.write(40)
    await kit.keeper.apply_retention()
    await kit.removed()
    start = kit.partitions.get("t", 0).log_start_offset
    files.lose_power()
    assert Kit(files).partitions.get("t", 0).log_start_offset == start


async def test_d6_a_log_that_cannot_roll_goes_offline_and_the_next_one_is_cared_for(files: SimFiles) -> None:
    kit = Kit(files, {"retention.ms": "1000"})
    kit.write(10, index=0)
    kit.write(10, index=1)
    kit.clock.advance_ms(2_000)
    files.fail("open", path=f"{DATA}/t-0/*.log", error=errno.EIO)
    await kit.keeper.apply_retention()
    await kit.removed()
    assert kit.partitions.get("t", 0).failure is not None
    assert kit.partitions.get("t", 1).log_start_offset == 10


async def test_d7_a_log_without_room_to_roll_gives_what_it_can_and_the_next_one_is_cared_for(files: SimFiles) -> None:
    kit = Kit(files, {"retention.ms": "1000"})
    kit.write(10, index=0)
    kit.write(10, index=1)
    kit.clock.advance_ms(2_000)
    files.fail("append", path=f"{DATA}/t-0/*", error=errno.ENOSPC)
    await kit.keeper.apply_retention()
    await kit.removed()
    first, second = kit.partitions.get("t", 0), kit.partitions.get("t", 1)
    assert first.failure is None
    assert 0 < first.log_start_offset < 10
    assert second.log_start_offset == 10
    await kit.keeper.apply_retention()
    await kit.removed()
    assert first.log_start_offset == 10, "it heals by itself"


# Compaction


async def test_d7_a_full_disk_stops_compaction_and_not_the_partition(files: SimFiles) -> None:
    kit = Kit(files, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    partition = kit.partitions.get("t", 0)
    kit.write_keyed(20)
    files.fail("append", path="*.cleaned", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        await kit.keeper.compact()
    assert partition.failure is None
    assert not [name for name in files.list(f"{DATA}/t-0") if name.endswith(".cleaned")]
    await kit.keeper.compact()
    assert partition.size_bytes < 1_000


async def test_corrupt_partition_of_a_deleted_topic_is_released(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(files, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    kit.write_keyed(20)
    topic = kit.partitions.followed("t")
    assert topic is not None

    def run(self: object) -> Iterator[None]:
        yield
        raise CorruptLog("for the test")

    monkeypatch.setattr("headrace.storage.cleaner.cleaner.Cleaner.run", run)
    await kit.keeper.compact()
    assert kit.keeper._uncleanable == {kit.partitions.get("t", 0)}
    for _ in kit.partitions.delete_topic_logs(topic):
        pass
    await kit.keeper.compact()
    assert kit.keeper._uncleanable == set()


async def test_partition_whose_index_is_rebuilt_is_compacted_afterwards(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(files, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    kit.write_keyed(20)
    partition = kit.partitions.get("t", 0)
    before, rebuilds, original = partition.size_bytes, 0, Cleaner.run

    async def rebuilt() -> None:
        nonlocal rebuilds
        rebuilds += 1

    def run(self: Cleaner) -> Any:
        if not rebuilds:
            raise IndexRebuilding("in progress", rebuilt)
        return (yield from original(self))

    monkeypatch.setattr(Cleaner, "run", run)
    await kit.keeper.compact()
    assert rebuilds == 1
    assert partition.size_bytes < before
    assert not kit.keeper._uncleanable


@pytest.mark.parametrize(
    ("codec", "cause"),
    [(Codec.ZSTD, "decompresses to more than"), (7, "no compression codec 7")],
    ids=["too-large", "unknown-codec"],
)
async def test_batch_that_cannot_be_decompressed_excludes_only_its_partition(
    files: SimFiles, caplog: pytest.LogCaptureFixture, codec: int, cause: str
) -> None:
    kit = Kit(files, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    kit.write_keyed(3)
    kit.write_unreadable(codec)
    kit.write_keyed(20)
    kit.write_keyed(20, index=1)
    unreadable, other = kit.partitions.get("t", 0), kit.partitions.get("t", 1)
    before = unreadable.log_end_offset, unreadable.size_bytes
    await kit.keeper.compact()
    await kit.keeper.compact()
    assert other.size_bytes < 1_000
    assert (unreadable.log_end_offset, unreadable.size_bytes) == before
    assert unreadable.failure is None
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(logged) == 1, "the cause is logged once"
    assert "t-0" in logged[0]
    assert "offset 3" in logged[0]
    assert cause in logged[0]


async def test_unexpected_error_excludes_only_its_partition(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kit = Kit(files, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    kit.write_keyed(40)
    kit.write_keyed(20, index=1)
    run = Cleaner.run

    def run_or_fail(self: Cleaner) -> Task[Cleaned]:
        if self._log.directory.endswith("t-0"):
            raise ValueError("for the test")
        return (yield from run(self))

    monkeypatch.setattr(Cleaner, "run", run_or_fail)
    await kit.keeper.compact()
    assert kit.keeper._uncleanable == {kit.partitions.get("t", 0)}
    assert kit.partitions.get("t", 1).size_bytes < 1_000
    assert "for the test" in caplog.text


# Scrubbing


async def test_d13_the_scrubber_finds_what_nobody_reads(files: SimFiles, caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit(files, log_scrub_bytes_per_second=str(2**40))
    kit.write(20)
    await kit.partitions.close()
    files.flip_bit(f"{DATA}/t-0/{kit.log_files()[1]}", byte=70)
    kit = Kit(files, log_scrub_bytes_per_second=str(2**40))
    await kit.keeper.scrub()
    assert "corrupt" in caplog.text
    partition = kit.partitions.get("t", 0)
    damaged = partition.log.segments[1].base_offset
    with pytest.raises(CorruptLog):
        partition.read(damaged, 1_000, read_committed=False)
    assert partition.read(damaged + 1, 1_000, read_committed=False) is not None


@pytest.mark.parametrize("damage", ["bit", "gone"])
async def test_scrubber_rebuilds_a_damaged_transaction_index(
    files: SimFiles, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    kit = Kit(files, log_scrub_bytes_per_second=str(2**40))
    log = kit.partitions.get("t", 0).log
    for number in range(3):
        write(log, 7, "aborted", sequence=number)
        end(log, 7, ABORT)
        kit.write(5)
        log.roll(0)
    segment = next(one for one in log.segments[:-1] if one.aborted.sum)
    right = segment.aborted.between(0, 100)[0]
    path = segment.aborted.path
    if damage == "bit":
        files.flip_bit(path, byte=9)
    else:
        files.remove(path)
    await kit.keeper.scrub()
    assert path in caplog.text
    assert segment.aborted.between(0, 100)[0] == right
    kit.commit.run()
    caplog.clear()
    await kit.keeper.scrub()
    assert not caplog.records


# Checkpoints, deadlines, producers


async def test_a_checkpoint_says_what_is_on_disk_and_brings_the_rest_there(files: SimFiles) -> None:
    kit = Kit(files, {"flush.policy": "replicated"})
    kit.write(5)
    partition = kit.partitions.get("t", 0)
    assert partition.log.recovery_point == 0
    await kit.housekeeper._checkpoint()
    kit.commit.run()
    assert partition.log.recovery_point == 5
    await kit.housekeeper._checkpoint()
    files.lose_power()
    assert Kit(files).partitions.get("t", 0).log_end_offset == 5


async def test_d6_a_checkpoint_claims_nothing_for_a_partition_whose_sync_failed(files: SimFiles) -> None:
    kit = Kit(files)
    kit.write(3)
    produce(kit.partitions.get("t", 0), "lost")
    files.fail("sync", path=f"{DATA}/t-0/*.log")
    kit.commit.run()
    for _ in range(2):
        await kit.housekeeper._checkpoint()
        kit.commit.run()
    files.lose_power()
    partition = Kit(files).partitions.get("t", 0)
    assert (partition.log_end_offset, values_of(partition)) == (3, ["value 0", "value 1", "value 2"])


async def test_silent_producers_are_forgotten(files: SimFiles) -> None:
    kit = Kit(files, producer_id_expiration_ms="1000")
    kit.write(1, producer_id=1, producer_epoch=0, base_sequence=0)
    await kit.housekeeper._expire_producers()
    assert len(kit.partitions.get("t", 0).log.producers) == 1
    kit.clock.advance_ms(1_001)
    await kit.housekeeper._expire_producers()
    assert len(kit.partitions.get("t", 0).log.producers) == 0


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS, 10 * DAY_MS])
async def test_wall_clock_step_does_not_change_when_producers_expire(files: SimFiles, step_ms: int) -> None:
    kit = Kit(files, producer_id_expiration_ms=str(DAY_MS))
    sequence = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    kit.write(1, **sequence)
    partition = kit.partitions.get("t", 0)
    await kit.housekeeper._expire_producers()
    kit.clock.step_wall_ms(step_ms)
    kit.clock.advance_ms(DAY_MS - 1)
    await kit.housekeeper._expire_producers()
    kit.write(1, **sequence)
    assert values_of(partition) == ["value 0"], "the retry is recognized as a duplicate"
    kit.clock.advance_ms(1)
    await kit.housekeeper._expire_producers()
    assert len(partition.log.producers) == 0


async def test_produces_that_wait_are_looked_at_against_the_monotonic_clock(files: SimFiles) -> None:
    kit = Kit(files)
    kit.clock.advance_ms(1_234)
    kit.clock.step_wall_ms(-(10**9))
    await kit.housekeeper._expire_produce_waits()
    assert kit.produce.expired == [1_234]


# The housekeeper itself


@pytest.mark.parametrize("mishap", [StorageError("the disk"), ValueError("our own mistake")])
async def test_work_that_fails_is_said_and_tried_again(
    files: SimFiles, mishap: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    kit = Kit(files)
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise mishap

    kit.housekeeper._every(0.001, work)
    await until(lambda: tries >= 3)
    await kit.housekeeper.stop()
    assert str(mishap) in caplog.text
    assert "work" in caplog.text


async def test_it_starts_all_its_work_and_stops_it(files: SimFiles) -> None:
    kit = Kit(files)
    kit.housekeeper.start()
    names = {task.get_name() for task in kit.housekeeper._tasks}
    assert names >= {"_expire_produce_waits", "_checkpoint", "apply_retention", "compact", "scrub", "_expire_producers"}
    await kit.housekeeper.stop()
    assert all(task.done() for task in kit.housekeeper._tasks)


# High watermarks


async def test_high_watermarks_are_checkpointed_while_running(files: SimFiles) -> None:
    kit = Kit(files)
    kit.write(5)
    kit.write(7, index=1)
    await kit.housekeeper._checkpoint_high_watermarks()
    found = [LogDirectory(files, DATA).high_watermark_of(TopicPartition("t", index)) for index in (0, 1)]
    assert found == [5, 7]
    before = len(files.operations)
    await kit.housekeeper._checkpoint_high_watermarks()
    assert len(files.operations) == before, "unchanged watermarks cost no write"


async def test_high_watermarks_are_checkpointed_periodically(files: SimFiles) -> None:
    kit = Kit(files, replica_high_watermark_checkpoint_interval_ms="1")
    kit.membership = object()
    kit.write(5)
    kit.housekeeper.start()
    try:
        await until(lambda: files.exists(f"{DATA}/{HIGH_WATERMARKS}"))
    finally:
        await kit.housekeeper.stop()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOENT], ids=errno.errorcode.get)
async def test_look_at_strays_that_fails_is_logged(error: int, caplog: pytest.LogCaptureFixture) -> None:
    """An exception that no code handles would end up in the event loop's handler, without a word of what was done."""
    with SimFiles() as files:
        kit = Kit(files)
        files.fail("list", path=DATA, error=error)
        kit.housekeeper.start()
        look = next(task for task in kit.housekeeper._tasks if task.get_name() == "look")
        await until(look.done)
        assert look.exception() is None
        assert "look: list /data" in caplog.text
        await kit.housekeeper.stop()
        await kit.partitions.close()
