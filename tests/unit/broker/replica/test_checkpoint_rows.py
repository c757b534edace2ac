"""A checkpoint row names a partition, not a topic id: none may outlive the records that it describes."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.config.values import LogConfig
from headrace.core.image.deltas import MetadataDelta, PartitionsChanged, TopicCreated, TopicDeleted
from headrace.core.image.metadata_image import TopicImage
from headrace.model.errors import StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.directory import checkpoint_files
from headrace.storage.directory.log_directory import CHECKSUM_ROW, LogDirectory
from headrace.storage.io.file_system import OsFileSystem
from headrace.testing import SimFiles
from headrace.testing.simulation.files import PowerLost
from tests.unit.broker.partition_kit import produce, state
from tests.unit.broker.replica.test_replica_manager import CONFIGS, DATA, Run, topic

ROWS = (
    checkpoint_files.RECOVERY_POINTS,
    checkpoint_files.LOG_STARTS,
    checkpoint_files.CLEANED,
    checkpoint_files.HIGH_WATERMARKS,
)
PARTITION = TopicPartition("t", 0)


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def followed(number: int = 7, *, leader_epoch: int = 0) -> TopicImage:
    """A topic with two replicas, of which this broker, 1, is the follower."""
    replica = state(leader=2, isr=(1, 2), leader_epoch=leader_epoch)
    return TopicImage("t", UUID(int=number << 64 | 1), (replica,), CONFIGS)


def append(run: Run, count: int) -> None:
    """As a follower does; the leader's high watermark is not known yet."""
    partition = run.partitions.get("t", 0)
    partition.leader = 1  # `produce` appends as a leader
    for _ in range(count):
        produce(partition, f"value {partition.log_end_offset}", acks=1)
    partition.leader = 2
    run.commit.run()


def checkpoint_all(run: Run) -> None:
    """As the housekeeper does."""
    partition = run.partitions.get("t", 0)
    run.partitions.checkpoint()
    run.log_dir.note_cleaned(PARTITION, partition.high_watermark)
    run.log_dir.write_cleaned()
    run.log_dir.note_high_watermark(PARTITION, partition.high_watermark)
    run.log_dir.write_high_watermarks()


async def lived(files: SimFiles) -> Run:
    """A follower with 20 records, of which 5 are deleted and 18 committed; every checkpoint names it."""
    run = Run(files, followed())
    for name in ("in_background", "remove_in_background"):
        setattr(run.partitions.removals, name, lambda work, *arguments: work(*arguments))
    append(run, 20)
    partition = run.partitions.get("t", 0)
    partition.set_high_watermark(18)
    partition.move_log_start(5)
    checkpoint_all(run)
    assert all(PARTITION in rows(files, name) for name in ROWS)
    return run


def rows(files: SimFiles, name: str) -> dict[TopicPartition, int]:
    found = checkpoint_files.read_offsets(files, f"{DATA}/{name}")
    found.pop(CHECKSUM_ROW, None)
    return found


async def recreate(run: Run) -> None:
    await run.follow(TopicDeleted(followed()))
    await run.follow(TopicCreated(followed(8)), followed(8))


async def recreate_missing_the_deletion(run: Run) -> None:
    await run.follow(TopicCreated(followed(8)), followed(8))


@pytest.mark.parametrize("change", [recreate, recreate_missing_the_deletion])
async def test_recreated_topic_starts_with_high_watermark_zero(files: SimFiles, change: Callable[[Run], Any]) -> None:
    run = await lived(files)
    await change(run)
    append(run, 3)
    files.lose_power()
    partition = Run(files, followed(8)).partitions.get("t", 0)
    assert (partition.log_start_offset, partition.log_end_offset) == (0, 3)
    assert partition.high_watermark == 0, "nothing of the new topic is committed"


async def test_topic_recreated_while_the_broker_was_away_inherits_no_row(files: SimFiles) -> None:
    await lived(files)
    files.lose_power()
    run = Run(files, followed(0xABCDEF))
    append(run, 3)
    files.lose_power()
    assert Run(files, followed(0xABCDEF)).partitions.get("t", 0).high_watermark == 0


async def test_partition_directory_removed_by_hand_leaves_no_row(files: SimFiles) -> None:
    run = await lived(files)
    await run.partitions.close()
    files.remove_tree(f"{DATA}/t-0")
    run = Run(files, followed())
    append(run, 3)
    files.lose_power()
    assert all(rows(files, name).get(PARTITION, 0) <= 3 for name in ROWS)
    assert Run(files, followed()).partitions.get("t", 0).high_watermark == 0


async def test_crash_anywhere_in_recreation_leaves_no_row_of_the_old_topic() -> None:
    with SimFiles() as disk:
        run = await lived(disk)
        disk.operations.clear()
        await recreate(run)
        count = len(disk.operations)
    assert count > 10
    for at in range(1, count + 1):
        with SimFiles() as disk:
            run = await lived(disk)
            disk.lose_power_before(at)
            with suppress(PowerLost):
                await recreate(run)
            disk.heal()
            disk.lose_power()
            run = Run(disk, followed(8), deleted=(followed().topic_id,))
            append(run, 3)
            disk.lose_power()
            log_dir = LogDirectory(disk, DATA)
            assert log_dir.high_watermark_of(PARTITION) == 0, f"crash before operation {at}"
            assert log_dir.cleaned_to(PARTITION) == 0, f"crash before operation {at}"
            partition = Run(disk, followed(8)).partitions.get("t", 0)
            assert (partition.log_start_offset, partition.log_end_offset) == (0, 3), f"crash before operation {at}"


# A disk that is not mounted

ALONE = topic(partitions=1)._replace(configs={})  # one segment: no file name has the log start


@pytest.fixture
async def lived_on_disk(tmp_path: Path) -> Path:
    """A data directory whose partition t-0 is a link to another disk; records below 5 are deleted."""
    run = Run(OsFileSystem(), ALONE, data=f"{tmp_path}/data")
    run.write(20)
    run.partitions.get("t", 0).move_log_start(5)
    run.partitions.checkpoint()
    run.log_dir.write_log_starts()
    await run.partitions.close()
    (tmp_path / "data/t-0").rename(tmp_path / "other")
    (tmp_path / "data/t-0").symlink_to(tmp_path / "other")
    return tmp_path


@pytest.mark.parametrize("change", [None, PartitionsChanged(ALONE, ())], ids=["start", "start, change"])
async def test_deleted_records_stay_deleted_after_a_start_without_the_disk(
    lived_on_disk: Path, change: MetadataDelta | None
) -> None:
    data = f"{lived_on_disk}/data"
    (lived_on_disk / "other").rename(lived_on_disk / "away")
    run = Run(OsFileSystem(), ALONE, data=data)
    if change is not None:
        await run.follow(change, ALONE)
    with pytest.raises(StorageError):
        run.partitions.get("t", 0)
    await run.partitions.close()
    (lived_on_disk / "away").rename(lived_on_disk / "other")
    run = Run(OsFileSystem(), ALONE, data=data)
    partition = run.partitions.get("t", 0)
    assert (partition.log_start_offset, partition.log_end_offset) == (5, 20)
    await run.partitions.close()


def test_creating_a_partition_over_a_dangling_link_keeps_its_rows(lived_on_disk: Path) -> None:
    files, data = OsFileSystem(), f"{lived_on_disk}/data"
    (lived_on_disk / "other").rename(lived_on_disk / "away")
    log_dir = LogDirectory(files, data)
    with pytest.raises(StorageError):
        log_dir.create(PARTITION, UUID(int=7), LogConfig(), now_ms=0)
    log_dir.flush_forgotten_checkpoints()
    assert checkpoint_files.read_offsets(files, f"{data}/{checkpoint_files.LOG_STARTS}")[PARTITION] == 5


# Truncation


async def truncate(partitions: ReplicaManager, end: int) -> None:
    assert await partitions.truncate(partitions.get("t", 0), end)


async def truncate_fully_and_start_at(partitions: ReplicaManager, end: int) -> None:
    assert await partitions.truncate_fully_and_start_at(partitions.get("t", 0), end)


@pytest.mark.parametrize("cut", [truncate, truncate_fully_and_start_at])
@pytest.mark.parametrize("end", [10, 3, 0], ids=["in the log", "below the log start", "everything"])
async def test_rows_above_the_truncated_end_do_not_describe_new_records(
    files: SimFiles, cut: Callable[[ReplicaManager, int], Any], end: int
) -> None:
    """The offsets from `end` on are written again by another leader, and are not committed yet."""
    run = await lived(files)
    await cut(run.partitions, end)
    for name in ROWS:
        assert rows(files, name).get(PARTITION, 0) <= end, name
    append(run, 12)
    files.lose_power()
    partition = Run(files, followed()).partitions.get("t", 0)
    assert partition.high_watermark <= max(end, partition.log_start_offset)
    assert partition.log_start_offset <= end
    assert partition.log_end_offset == end + 12
    assert not partition.log.holes


@pytest.mark.parametrize("end", [10, 3], ids=["in the log", "below the log start"])
async def test_crash_anywhere_in_truncation_leaves_no_row_above_the_log(end: int) -> None:
    with SimFiles() as disk:
        run = await lived(disk)
        disk.operations.clear()
        await truncate(run.partitions, end)
        count = len(disk.operations)
    for at in range(1, count + 1):
        with SimFiles() as disk:
            run = await lived(disk)
            disk.lose_power_before(at)
            with suppress(PowerLost):
                await truncate(run.partitions, end)
            disk.heal()
            disk.lose_power()
            partition = Run(disk, followed()).partitions.get("t", 0)
            assert not partition.log.holes, f"crash before operation {at}"
            for name in ROWS:
                assert rows(disk, name).get(PARTITION, 0) <= partition.log_end_offset, f"{name} before {at}"


async def test_row_above_the_opened_log_is_lowered_for_good(files: SimFiles) -> None:
    """Acknowledged from the page cache, lost with the power, and written again by another leader."""
    run = await lived(files)
    partition = run.partitions.get("t", 0)
    partition.leader = 1
    produce(partition, "not synced", acks=1)
    partition.leader = 2
    partition.set_high_watermark(21)
    run.log_dir.note_high_watermark(PARTITION, 21)
    run.log_dir.write_high_watermarks()
    files.lose_power()
    run = Run(files, followed())
    assert run.partitions.get("t", 0).log_end_offset == 20
    append(run, 5)
    files.lose_power()
    assert Run(files, followed()).partitions.get("t", 0).high_watermark == 20


# Kafka's format


async def test_checkpoints_stay_readable_by_kafka(files: SimFiles) -> None:
    """Kafka reads a version, a count and rows of a topic, a partition and an offset."""
    run = await lived(files)
    await truncate(run.partitions, 10)
    for name in ROWS:
        version, count, *lines = files.read(f"{DATA}/{name}").decode().splitlines()
        assert (version, count) == ("0", str(len(lines)))
        for line in lines:
            _, index, offset = line.split(" ")
            assert int(index) >= 0 <= int(offset)
