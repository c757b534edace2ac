"""What happens in the background: promises have deadlines, old segments go, and one bad log stops nobody's care."""

import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.broker import Broker
from headrace.broker.housekeeping import Housekeeper
from headrace.broker.log_keeper import LogKeeper
from headrace.broker.partitions import Partitions
from headrace.core.cluster.image import TopicImage
from headrace.model.errors import CorruptLog, DiskFull, StorageError
from headrace.model.settings import Settings
from headrace.records.control import ControlType, EndMarker
from headrace.storage.log_dir import LogDir
from headrace.storage.log_values import Producer
from headrace.testing import SimClock, SimFiles
from tests.unit.broker.connection_kit import until
from tests.unit.broker.partition_kit import CommitByHand, produce, state, values_of

DATA = "/data"
DAY_MS = 86_400_000
SEGMENTS = {"internal.segment.bytes": "400"}


class Kit:
    """As much of a broker as its housekeeper sees."""

    def __init__(self, files: SimFiles, configs: dict[str, str] | None = None, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.files = files
        self.settings = Settings(data_dir=DATA, broker_configs=named)
        self.clock = SimClock()
        self.log_dir = LogDir(files, DATA)
        self.log_dir.claim("cluster", 1, UUID(int=1))
        self.commit = CommitByHand()
        self.partitions = Partitions(self.log_dir, self.clock, 1, self.commit)  # type: ignore[arg-type]
        topic = TopicImage("t", UUID(int=7), (state(),) * 2, {**SEGMENTS, **(configs or {})})
        self.partitions.load(SimpleNamespace(topics={"t": topic}), {}, ())  # type: ignore[arg-type]
        self.keeper = LogKeeper(cast(Broker, self))
        self.produce = SimpleNamespace(expired=[], expire=lambda now_ms: self.produce.expired.append(now_ms))
        self.housekeeper = Housekeeper(cast(Broker, self), self.produce)  # type: ignore[arg-type]

    def write(self, count: int, index: int = 0, **fields: Any) -> None:
        partition = self.partitions.get("t", index)
        for _ in range(count):
            now_ms = self.clock.wall_ms()
            produce(partition, f"value {partition.log_end_offset}", timestamp=now_ms, now_ms=now_ms, **fields)
        self.commit.run()

    def end_transaction(self, producer_id: int) -> None:
        marker, producer = EndMarker(ControlType.ABORT, 0), Producer(producer_id, 0)
        self.partitions.get("t", 0).append_marker(marker, producer, self.clock.wall_ms(), epoch_was_bumped=False)
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
    from headrace.records.builder import NewRecord, build_batch

    for number in range(20):
        records = [NewRecord(kit.clock.wall_ms(), b"key", b"value %d" % number)]
        partition.append(memoryview(bytearray(build_batch(records))), -1, kit.clock.wall_ms())
    kit.commit.run()
    files.fail("append", path="*.cleaned", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        await kit.keeper.compact()
    assert partition.failure is None
    assert not [name for name in files.list(f"{DATA}/t-0") if name.endswith(".cleaned")]
    await kit.keeper.compact()
    assert partition.size_bytes < 1_000


# Scrubbing


async def test_d13_the_scrubber_finds_what_nobody_reads(files: SimFiles, caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit(files, log_scrub_bytes_per_second=str(2**40))
    kit.write(20)
    await kit.partitions.close()
    files.flip_bit(f"{DATA}/t-0/{kit.log_files()[1]}", byte=70)
    kit = Kit(files, log_scrub_bytes_per_second=str(2**40))
    await kit.keeper.scrub()
    assert "damaged" in caplog.text
    partition = kit.partitions.get("t", 0)
    damaged = partition.log.segments[1].base_offset
    with pytest.raises(CorruptLog):
        partition.read(damaged, 1_000, read_committed=False)
    assert partition.read(damaged + 1, 1_000, read_committed=False) is not None


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
