"""A start tells a replica whose files are gone from a new one, whatever the stop before it, and a start that failed.

A lost replica has a hole: before the broker has a session, it leaves the partition to others.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest

from headrace.core.image.deltas import TopicCreated, TopicDeleted
from headrace.core.image.metadata_image import MetadataImage, TopicImage
from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.storage.directory import checkpoint_files
from headrace.storage.directory.replica_inventory import FILE_NAME, Known, ReplicaId, ReplicaInventory
from headrace.storage.segment.corrupt_ranges import damaged_from
from headrace.testing import SimFiles
from headrace.testing.simulation.files import PowerLost
from tests.unit.broker.partition_kit import produce
from tests.unit.broker.replica.test_replica_manager import CONFIGS, DATA, Run

FOLDER = f"{DATA}/t-0"
# A clean shutdown of a whole cluster leaves one replica alone in the ISR.
ALONE = PartitionRegistration(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=0, partition_epoch=1)
LAST_LEADER = ALONE._replace(isr=(), leader=NO_LEADER, last_leader=1)
IN_SYNC = ALONE._replace(isr=(1, 2))
FOLLOWER = ALONE._replace(isr=(2,), leader=2)
STATES = {"alone": ALONE, "last leader": LAST_LEADER, "follower": FOLLOWER}


def topic(state: PartitionRegistration = ALONE, number: int = 7, **configs: str) -> TopicImage:
    return TopicImage("t", UUID(int=number << 64 | 1), (state,), {**CONFIGS, **configs})


REPLICA = ReplicaId(topic().topic_id, 0)


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def is_lost(run: Run) -> bool:
    return damaged_from(run.partitions.get("t", 0).log) is not None


# How a run ends


async def stop(run: Run, files: SimFiles) -> None:
    await run.partitions.close()


async def stop_and_boot(run: Run, files: SimFiles) -> None:
    await run.partitions.close()
    files.lose_power()


async def kill(run: Run, files: SimFiles) -> None:
    files.boots += 1


async def lose_power(run: Run, files: SimFiles) -> None:
    files.lose_power(torn=Random(7))


ENDS = [stop, stop_and_boot, kill, lose_power]

# How files are lost


def remove_the_directory(files: SimFiles) -> None:
    files.remove_tree(FOLDER)
    files.sync_dir(DATA)


def remove_the_segments(files: SimFiles) -> None:
    for name in files.list(FOLDER):
        if name.startswith("0"):
            files.remove(f"{FOLDER}/{name}")
    files.sync_dir(FOLDER)


def empty_the_segments(files: SimFiles) -> None:
    """As after an `fsck` that found no blocks of them."""
    remove_the_segments(files)
    files.open(f"{FOLDER}/{0:020}.log", create=True).sync()
    files.sync_dir(FOLDER)


LOSSES = [remove_the_directory, remove_the_segments, empty_the_segments]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("has_checkpoints", [False, True], ids=["young", "checkpointed"])
async def test_replica_without_its_files_is_lost(
    files: SimFiles, end: Callable, lose: Callable, state: str, has_checkpoints: bool
) -> None:
    run = Run(files, topic())
    run.write(5)
    if has_checkpoints:
        run.partitions.checkpoint()
    await end(run, files)
    lose(files)
    for _ in range(3):
        run = Run(files, topic(STATES[state]))
        assert is_lost(run)
        await end(run, files)


@pytest.mark.parametrize("end", ENDS)
async def test_replica_with_its_files_is_not_lost(files: SimFiles, end: Callable) -> None:
    run = Run(files, topic())
    for count in (5, 10, 15):
        run.write(5)
        await end(run, files)
        run = Run(files, topic(ALONE._replace(leader_epoch=count)))
        assert not is_lost(run)
        assert run.partitions.get("t", 0).log_end_offset == count


@pytest.mark.parametrize("end", ENDS)
async def test_empty_replica_is_not_lost(files: SimFiles, end: Callable) -> None:
    """Also if a power failure took its directory, which was never synced."""
    run = Run(files, topic())
    for _ in range(3):
        await end(run, files)
        run = Run(files, topic())
        assert not is_lost(run)


@pytest.mark.parametrize("state", [ALONE, LAST_LEADER])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("has_directory", [False, True])
async def test_new_replica_is_not_lost(
    files: SimFiles, end: Callable, state: PartitionRegistration, has_directory: bool
) -> None:
    """Its broker ended before it created the directory, or the host crashed before the directory was durable."""
    run = Run(files)
    if has_directory:
        await run.follow(TopicCreated(topic(ALONE)), topic(ALONE))
    await end(run, files)
    for _ in range(2):
        run = Run(files, topic(state))
        assert not is_lost(run)
        await end(run, files)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_last", [False, True])
async def test_new_replica_leaves_its_partition_to_others_unless_it_is_the_last(
    files: SimFiles, end: Callable, is_last: bool
) -> None:
    await end(Run(files), files)
    run = Run(files, topic(IN_SYNC))
    partition = run.partitions.get("t", 0)
    assert is_lost(run)
    assert run.partitions.lost.is_in_doubt(partition)
    image = MetadataImage()
    image._topics["t"] = topic(ALONE if is_last else FOLLOWER)
    run.partitions.lost.end_doubts(image)
    assert is_lost(run) is not is_last
    assert not run.partitions.lost.is_in_doubt(partition)


async def test_new_replica_is_lost_if_it_may_have_acked_unsynced_records(files: SimFiles) -> None:
    relaxed = topic(IN_SYNC, **{"flush.policy": "replicated"})
    run = Run(files)
    await run.follow(TopicCreated(relaxed), relaxed)
    files.lose_power()
    assert is_lost(Run(files, relaxed))


@pytest.mark.parametrize("end", ENDS)
async def test_replica_with_unsynced_records_only_is_not_lost(files: SimFiles, end: Callable) -> None:
    """None of them was acknowledged."""
    run = Run(files, topic())
    produce(run.partitions.get("t", 0), "not synced")
    await end(run, files)
    assert not is_lost(Run(files, topic()))


async def test_replica_that_acked_unsynced_records_is_lost_with_its_directory(files: SimFiles) -> None:
    """Other replicas may have received them, and would truncate them."""
    relaxed = topic(**{"flush.policy": "replicated"})
    run = Run(files, relaxed)
    produce(run.partitions.get("t", 0), "not synced")
    files.lose_power()
    remove_the_directory(files)  # only the disk knows whether a directory that was not synced is there
    assert is_lost(Run(files, relaxed._replace(partitions=(LAST_LEADER,))))


# Starts that fail half-way


async def lived(files: SimFiles, lose: Callable) -> None:
    run = Run(files, topic())
    run.write(5)
    run.partitions.checkpoint()
    files.lose_power()
    lose(files)


async def operations_of_a_start(lose: Callable) -> int:
    with SimFiles() as files:
        await lived(files, lose)
        files.operations.clear()
        Run(files, topic())
        return len(files.operations)


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("end", [kill, lose_power])
async def test_start_that_dies_anywhere_leaves_the_loss_to_the_next(lose: Callable, end: Callable) -> None:
    count = await operations_of_a_start(lose)
    assert count > 20
    for at in range(1, count + 2):
        with SimFiles() as files:
            await lived(files, lose)
            files.lose_power_before(at)
            run = None
            with suppress(PowerLost):
                run = Run(files, topic())
            files.heal()
            await end(run, files)  # type: ignore[arg-type]
            assert is_lost(Run(files, topic())), f"the start ended before operation {at}"


@pytest.mark.parametrize("lose", [remove_the_directory, remove_the_segments])
async def test_checkpoint_names_the_replica_for_an_earlier_version(lose: Callable) -> None:
    """A data directory of a version that wrote no such file, at the first start of this one, which dies anywhere."""
    count = await operations_of_a_start(lose)
    for at in range(1, count + 2):
        with SimFiles() as files:
            await lived(files, lose)
            files.remove(f"{DATA}/{FILE_NAME}")
            files.lose_power_before(at)
            with suppress(PowerLost):
                Run(files, topic())
            files.heal()
            files.lose_power()
            assert is_lost(Run(files, topic())), f"the start ended before operation {at}"


async def test_topic_of_the_same_name_inherits_no_loss(files: SimFiles) -> None:
    await lived(files, remove_the_directory)
    assert not is_lost(Run(files, topic(number=8)))


# What empties a log on purpose


async def truncate(run: Run) -> None:
    assert await run.partitions.truncate(run.partitions.get("t", 0), 0)


async def truncate_fully_and_start_at(run: Run) -> None:
    assert await run.partitions.truncate_fully_and_start_at(run.partitions.get("t", 0), 0)


async def move_away_and_back(run: Run) -> None:
    gone = topic()._replace(partitions=(FOLLOWER._replace(replicas=(2,)),))
    await run.follow(TopicCreated(gone), gone)
    await run.removed()
    await run.follow(TopicCreated(topic()), topic())


async def recreate(run: Run) -> None:
    await run.follow(TopicDeleted(topic()))
    await run.removed()
    await run.follow(TopicCreated(topic()), topic())


@pytest.mark.parametrize("end", ENDS)
async def test_sync_after_a_replica_has_moved_away_holds_no_replica(files: SimFiles, end: Callable) -> None:
    run = Run(files, topic())
    run.write(5)
    produce(run.partitions.get("t", 0), "not synced")
    gone = topic()._replace(partitions=(FOLLOWER._replace(replicas=(2,)),))
    await run.follow(TopicCreated(gone), gone)
    run.commit.run()
    await run.removed()
    await run.follow(TopicCreated(topic()), topic())
    await end(run, files)
    assert not is_lost(Run(files, topic()))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("empty", [truncate, truncate_fully_and_start_at, move_away_and_back, recreate])
async def test_log_that_was_emptied_is_not_lost(files: SimFiles, empty: Callable, end: Callable) -> None:
    run = Run(files, topic())
    run.write(5)
    await empty(run)
    await end(run, files)
    run = Run(files, topic(ALONE._replace(leader_epoch=5)))
    assert not is_lost(run)
    run.write(5)
    files.lose_power()
    remove_the_directory(files)
    assert is_lost(Run(files, topic())), "it has had records again"


@pytest.mark.parametrize("empty", [truncate, truncate_fully_and_start_at])
async def test_crash_anywhere_in_emptying_leaves_records_or_no_loss(empty: Callable) -> None:
    with SimFiles() as files:
        run = Run(files, topic())
        run.write(5)
        files.operations.clear()
        await empty(run)
        count = len(files.operations)
    for at in range(1, count + 2):
        with SimFiles() as files:
            run = Run(files, topic())
            run.write(5)
            files.lose_power_before(at)
            with suppress(PowerLost):
                await empty(run)
            files.heal()
            files.lose_power()
            assert not is_lost(Run(files, topic())), f"before operation {at}"


async def test_lost_replica_that_follows_again_is_not_lost(files: SimFiles) -> None:
    await lived(files, remove_the_directory)
    run = Run(files, topic(FOLLOWER))
    assert await run.partitions.truncate_corruption(run.partitions.get("t", 0))
    files.boots += 1
    run = Run(files, topic(FOLLOWER))
    assert not is_lost(run)


async def test_directory_that_is_put_back_is_not_lost(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(5)
    await run.partitions.close()
    files.rename(FOLDER, "/backup")
    run = Run(files, topic())
    assert is_lost(run)
    await run.partitions.close()
    files.remove_tree(FOLDER)
    files.rename("/backup", FOLDER)
    run = Run(files, topic())
    assert not is_lost(run)
    assert run.partitions.get("t", 0).log_end_offset == 5


# The file


def test_half_a_row_is_dropped(files: SimFiles) -> None:
    files.make_dir(DATA)
    held = ReplicaInventory(files, DATA)
    other = ReplicaId(UUID(int=9), 3)
    held.note(REPLICA, Known.HELD)
    held.write()
    whole = files.read(f"{DATA}/{FILE_NAME}")
    held.note(other, Known.HELD)
    held.write()
    data = files.read(f"{DATA}/{FILE_NAME}")
    for end in range(len(whole), len(data)):
        files.replace(f"{DATA}/{FILE_NAME}", data[:end])
        held = ReplicaInventory(files, DATA)
        assert held.is_held(REPLICA)
        assert not held.was_corrupt
        held.note(other, Known.LOST)
        held.write()
        held = ReplicaInventory(files, DATA)
        assert held.is_held(REPLICA)
        assert held.is_lost(other)


@pytest.mark.parametrize("byte", range(0, 40, 3))
async def test_flipped_bit_in_the_file_hides_no_loss(files: SimFiles, byte: int) -> None:
    await lived(files, remove_the_directory)
    files.flip_bit(f"{DATA}/{FILE_NAME}", byte=byte, bit=1)
    assert is_lost(Run(files, topic()))


async def test_row_that_cannot_be_written_is_written_with_the_next_sync(files: SimFiles) -> None:
    run = Run(files, topic())
    files.fail("append", path=f"{DATA}/{FILE_NAME}*", error=28)
    run.write(1)
    assert not run.log_dir.replicas.is_held(REPLICA)
    run.write(1)
    assert ReplicaInventory(files, DATA).is_held(REPLICA)
    assert checkpoint_files.HIGH_WATERMARKS not in files.list(DATA)
