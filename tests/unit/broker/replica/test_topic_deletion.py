"""A topic deletion whose file operations fail: no later topic of the name uses its logs or loses a record."""

import errno
from collections.abc import AsyncIterator
from contextlib import suppress
from unittest.mock import Mock

import pytest

from headrace.core.controller.topic_control import DeletedTopic
from headrace.core.image.deltas import TopicCreated, TopicDeleted
from headrace.model.errors import StorageError
from headrace.storage.directory.stray_directories import find_strays
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import values_of
from tests.unit.broker.replica.test_replica_manager import DATA, Run, topic, values
from tests.unit.broker.start_kit import Machine

OLD, NEW = topic(number=7), topic(number=0xABCDEF)
ERRORS = [errno.EIO, errno.ENOENT, errno.ENOSPC, errno.EMFILE]


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


async def prepared(files: SimFiles) -> Run:
    """Two partitions with records, checkpoints that name them."""
    run = Run(files, OLD)
    for index in range(2):
        run.write(20, index=index)
        run.partitions.get("t", index).delete_records(5)
    await run.partitions.removals.settle_log_starts()
    run.partitions.checkpoint()
    await run.removed()
    return run


async def create_again(run: Run) -> dict[int, int]:
    """Writes to every partition of the new topic that can be used; how many records each has acknowledged."""
    await run.follow(TopicCreated(NEW), NEW)
    acked = {}
    for index in range(2):
        try:
            partition = run.partitions.get("t", index)
        except StorageError:
            continue  # offline: nothing is acknowledged
        assert partition.topic_id == NEW.topic_id
        assert partition.log_end_offset == 0
        with suppress(StorageError):
            run.write(3, index=index)
        acked[index] = partition.high_watermark
    await run.removed()
    return acked


async def check_restart(files: SimFiles, acked: dict[int, int], fault: str) -> None:
    files.heal()
    files.lose_power()
    run = Run(files, NEW, deleted=(OLD.topic_id,))
    for index in range(2):
        found = values_of(run.partitions.get("t", index))
        assert found == values(len(found)), f"{fault}: partition {index} has records of the old topic"
        assert acked.get(index, 0) <= len(found) <= 3, f"{fault}: partition {index}"


async def operations_of_deletion() -> list[tuple[str, str, int]]:
    with SimFiles() as disk:
        run = await prepared(disk)
        disk.operations.clear()
        await run.follow(TopicDeleted(OLD))
        await create_again(run)
        done = [(name, path.split(".")[0] if "-delete" in path else path) for name, path in disk.operations]
    return [(name, f"{path}*", done[: at + 1].count((name, path))) for at, (name, path) in enumerate(done)]


@pytest.mark.parametrize("sticks", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
async def test_fault_in_deletion_or_recreation_loses_nothing(error: int, sticks: bool) -> None:
    operations = [one for one in await operations_of_deletion() if one[0] != "read"]
    assert len(operations) > 30
    for operation, path, nth in operations:
        with SimFiles() as disk:
            run = await prepared(disk)
            disk.fail(operation, path=path, nth=nth, error=error, sticks=sticks)
            await run.follow(TopicDeleted(OLD))
            assert run.partitions.held(OLD.topic_id, 0) is run.partitions.held(OLD.topic_id, 1) is None
            acked = await create_again(run)
            await check_restart(disk, acked, f"{operation} {path} {nth}")


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
async def test_failed_rename_leaves_other_partitions_deleted(files: SimFiles, error: int) -> None:
    run = await prepared(files)
    files.fail("rename", path=f"{DATA}/t-0", error=error)
    await run.follow(TopicDeleted(OLD))
    assert files.exists(f"{DATA}/t-0")
    assert not files.exists(f"{DATA}/t-1")
    assert await create_again(run) == {0: 3, 1: 3}, "creating the topic again renames the directory first"
    await check_restart(files, {0: 3, 1: 3}, "rename")


@pytest.mark.parametrize("length", [213, 214, 249], ids="{} characters".format)
async def test_deleted_topic_with_a_long_name_leaves_its_name_free(files: SimFiles, length: int) -> None:
    name = "l" * length
    former, newer = (topic(name, number=number, partitions=11) for number in (7, 8))
    run = Run(files, former)
    run.write(3, name, index=10)
    await run.follow(TopicDeleted(former))
    await run.removed()
    assert not [one for one in files.list(DATA) if one.startswith(name[:100])]
    await run.follow(TopicCreated(newer), newer)
    assert values_of(run.partitions.get(name, 10)) == []


@pytest.mark.parametrize("length", [213, 214, 249], ids="{} characters".format)
async def test_stray_with_a_long_name_is_recognized(files: SimFiles, length: int) -> None:
    unknown = topic("l" * length, partitions=11)
    run = Run(files, unknown)
    run.write(3, unknown.name, index=10)
    await run.partitions.close()
    Run(files)
    strays = {one.name.partition.partition: one for one in find_strays(files, DATA, now_ms=1)}
    assert strays.keys() == set(range(11))
    assert {one.topic_id for one in strays.values()} == {unknown.topic_id}
    assert [index for index, one in strays.items() if one.has_records] == [10]


async def test_persistent_rename_failure_keeps_new_partition_offline(files: SimFiles) -> None:
    run = await prepared(files)
    files.fail("rename", path=f"{DATA}/t-0", sticks=True)
    await run.follow(TopicDeleted(OLD))
    assert await create_again(run) == {1: 3}
    await check_restart(files, {1: 3}, "rename")


async def test_start_survives_directory_that_cannot_be_renamed(files: SimFiles) -> None:
    run = await prepared(files)
    await run.partitions.close()
    files.fail("rename", path=f"{DATA}/t-0", sticks=True)
    run = Run(files, NEW)
    with pytest.raises(StorageError):
        run.partitions.get("t", 0)
    run.write(3, index=1)
    await run.removed()
    files.heal()
    files.lose_power()
    run = Run(files, NEW)
    assert values_of(run.partitions.get("t", 0)) == []
    assert values_of(run.partitions.get("t", 1)) == values(3)
    assert len([name for name in files.list(DATA) if name.endswith("-stray")]) == 2, "kept, not deleted"


async def test_deletion_after_directory_vanished_succeeds(files: SimFiles) -> None:
    run = await prepared(files)
    files.remove_tree(f"{DATA}/t-0")
    await run.follow(TopicDeleted(OLD))
    assert await create_again(run) == {0: 3, 1: 3}
    await check_restart(files, {0: 3, 1: 3}, "vanished")


async def test_missed_deletion_does_not_reuse_the_old_log(files: SimFiles) -> None:
    """Partitions are looked up by topic id: a name alone may be that of an earlier topic."""
    run = await prepared(files)
    old = run.partitions.get("t", 0)
    await run.follow(TopicCreated(NEW), NEW)
    assert run.partitions.get("t", 0) is run.partitions.get(NEW.topic_id, 0) is not old
    assert run.partitions.held(OLD.topic_id, 0) is None
    assert old.failure is not None
    run.write(3)
    await run.removed()
    await check_restart(files, {0: 3}, "missed deletion")


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
async def test_delete_topics_succeeds_when_files_fail(files: SimFiles, error: int) -> None:
    """The metadata is committed: the client gets success, and every listener gets the event."""
    machine = Machine(files)
    broker = await machine.created()
    machine.produce(broker, 3)
    files.fail("rename", path="/data/t-0", error=error, sticks=True)
    files.fail("sync_dir", path="/data", sticks=True)
    broker._groups = Mock()
    rows = await broker.controller.delete_topics(["t"])
    assert isinstance(rows["t"], DeletedTopic)
    assert [type(call.args[0]) for call in broker._groups.follow.call_args_list] == [TopicDeleted]
    broker._groups = None
    files.heal()
    await broker.stop()


async def test_failed_listener_keeps_no_event_from_others(files: SimFiles) -> None:
    broker = await Machine(files).created()
    broker._groups, broker._transactions = Mock(), Mock()
    broker.partitions.follow = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    broker._groups.follow.side_effect = RuntimeError
    with pytest.raises(RuntimeError):
        await broker.controller.delete_topics(["t"])
    assert broker._groups.follow.called
    assert broker._transactions.follow.called
    broker._groups = broker._transactions = None
    await broker.stop()
