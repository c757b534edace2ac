"""No sync runs on the event loop of a broker that serves requests: a slow disk delays no other request or renewal."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace.broker.log.log_manager import LogManager
from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import CreatedTopic, NewTopic
from headrace.core.image.deltas import PartitionsChanged
from headrace.core.image.model import ConfigResource, PartitionRegistration, ResourceType
from headrace.metadata.embedded import MemoryStore
from headrace.model.errors import StorageError
from headrace.process.runtime import SystemClock
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.control import ControlType, EndMarker
from headrace.storage import log_truncation
from headrace.storage.log_append import append_batches_as_follower
from headrace.storage.log_types import Producer
from headrace.storage.producer import producer_state_loader
from headrace.testing import SimFiles
from tests.unit.broker.connection_kit import until
from tests.unit.broker.partition_kit import produce
from tests.unit.storage.log_kit import batch_of, read_values

CONFIGS: dict[str, str | None] = {"internal.segment.bytes": "400", "index.interval.bytes": "100"}


class Kit:
    """A broker on a disk that notes which thread syncs what."""

    def __init__(self, files: SimFiles) -> None:
        self.files = files
        self.on_loop: list[str] = []
        self.off_loop: list[str] = []
        self.removed_on_loop: list[str] = []
        clock = SystemClock()
        settings = Settings(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),), data_dir="/data")
        self.broker = Broker(settings, clock, files, MemoryStore(clock))

    def watch(self) -> None:
        loop_thread = threading.get_ident()

        def note(path: str) -> None:
            (self.on_loop if threading.get_ident() == loop_thread else self.off_loop).append(path)

        remove = self.files.remove

        def note_removal(path: str) -> None:
            if threading.get_ident() == loop_thread:
                self.removed_on_loop.append(path)
            remove(path)

        self.files.watch_syncs = note
        self.files.remove = note_removal  # type: ignore[method-assign]

    def large_files_removed_on_loop(self) -> list[str]:
        """Log files: unlinking one takes up to 0.2 s for a GiB. Indexes and snapshots are small."""
        return [path for path in self.removed_on_loop if ".log" in path]

    async def left_aside(self, partition: Partition) -> list[str]:
        await self.broker.partitions.removals.finish()
        return [name for name in self.files.list(partition.log.directory) if name.endswith(".deleted")]

    async def create(self, name: str = "t", partitions: int = 1, **configs: str) -> Partition:
        wanted = {**CONFIGS, **{key.replace("_", "."): value for key, value in configs.items()}}
        rows = await self.broker.controller.create_topics([NewTopic(name=name, partitions=partitions, configs=wanted)])
        assert isinstance(rows[name], CreatedTopic), rows[name]
        return self.broker.partitions.get(name, 0)

    async def write(self, partition: Partition, count: int = 1, **fields: int) -> None:
        for _ in range(count):
            produce(partition, f"value {partition.log_end_offset}", **fields)
        await until(lambda: partition.high_watermark == partition.log_end_offset)

    async def follows(self, partition: Partition) -> None:
        """Another broker leads from now on."""
        await until(lambda: partition.log.recovery_point == partition.log_end_offset)
        state = PartitionRegistration((2, 1), (2, 1), 2, partition.leader_epoch + 1, 0)
        partition.follow(state)


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    with SimFiles() as files:
        kit = Kit(files)
        await kit.broker.start()
        kit.watch()
        yield kit
        files.watch_syncs = None
        await kit.broker.stop()


async def test_leader_appends_in_a_new_epoch(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition, 3)
    partition.follow(PartitionRegistration((1,), (1,), 1, partition.leader_epoch + 1, 0))
    await kit.write(partition, 3)
    assert len(partition.log.epochs.entries()) == 2
    assert (kit.on_loop, bool(kit.off_loop)) == ([], True)


async def test_follower_appends_in_a_new_epoch(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition)
    await kit.follows(partition)
    batch = memoryview(bytearray(batch_of(["copied"])))
    append_batches_as_follower(partition.log, batch, [parse_header(batch)._replace(base_offset=1, leader_epoch=9)], 0)
    partition.appended(partition.log_end_offset)
    await partition.wait_until_flushed()
    assert (partition.log.epochs.latest, kit.on_loop) == (9, [])


async def test_topic_with_many_partitions_is_deleted(kit: Kit) -> None:
    partition = await kit.create(partitions=50)
    await kit.write(partition)
    await kit.broker.controller.delete_topics(["t"])
    assert kit.on_loop == []
    assert kit.off_loop.count("/data") < 5, "one sync of the data directory, not one a partition"
    await kit.create(partitions=50)
    assert kit.on_loop == []


async def test_replica_moves_away_while_another_one_is_added(kit: Kit) -> None:
    await kit.write(await kit.create(partitions=2))
    topic = kit.broker.image.topics["t"]
    here, away = (PartitionRegistration((broker,), (broker,), broker, 1, 1) for broker in (1, 2))
    for states in ((here, away), (away, here)):
        await kit.broker.partitions.follow(
            PartitionsChanged(topic._replace(partitions=states), ()), kit.broker.image, {}
        )
    assert kit.broker.partitions.held("t", 0) is None
    assert kit.broker.partitions.get("t", 1).log_end_offset == 0
    assert kit.on_loop == []


async def test_records_are_deleted(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    before = len(kit.off_loop)
    assert partition.delete_records(15) == 15
    await kit.broker.partitions.removals.settle_log_starts()
    await kit.broker.partitions.removals.finish()
    assert (kit.on_loop, len(kit.off_loop) - before) == ([], 2), "a file and its directory"


@pytest.mark.parametrize("end", [1, 7, 19])
async def test_follower_truncates(kit: Kit, end: int) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    assert await kit.broker.partitions.truncate(partition, end)
    assert (partition.log_end_offset, kit.on_loop) == (end, [])
    assert (kit.large_files_removed_on_loop(), await kit.left_aside(partition)) == ([], [])


async def test_follower_starts_over_at_another_offset(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    assert await kit.broker.partitions.truncate_fully_and_start_at(partition, 100)
    assert (partition.log_start_offset, kit.on_loop) == (100, [])
    assert (kit.large_files_removed_on_loop(), await kit.left_aside(partition)) == ([], [])


async def test_offsets_are_written_again_while_their_former_segments_are_removed(kit: Kit) -> None:
    partition = await kit.create()
    for _ in range(3):
        await kit.write(partition, 20 - partition.log_end_offset)
        await kit.follows(partition)
        assert await kit.broker.partitions.truncate(partition, 3)
        partition.follow(PartitionRegistration((1,), (1,), 1, partition.leader_epoch + 1, 0))
    await kit.write(partition, 20 - partition.log_end_offset)
    assert await kit.left_aside(partition) == []
    assert len(read_values(partition.log)) == 20


async def test_segment_with_an_aborted_transaction_rolls(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition, 1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    partition.append_marker(EndMarker(ControlType.ABORT, 0), Producer(7, 0), 1_000, uses_tv2=False)
    await kit.write(partition, 10)
    assert len(partition.log.segments) > 1
    assert kit.on_loop == []


async def test_background_work_runs(kit: Kit) -> None:
    partition = await kit.create(cleanup_policy="compact,delete", min_cleanable_dirty_ratio="0.0", retention_ms="1")
    for number in range(30):
        record = NewRecord(1_000, b"key", f"value {number}".encode())
        partition.append(memoryview(bytearray(build_batch([record]))), -1, 1_000)
    await until(lambda: partition.high_watermark == 30)
    keeper = LogManager(kit.broker)
    await kit.broker._housekeeper._checkpoint()
    await keeper.compact()
    await keeper.apply_retention()
    await kit.broker.partitions.removals.finish()
    assert partition.log_start_offset > 0
    assert kit.on_loop == []


async def test_config_of_a_topic_changes(kit: Kit) -> None:
    await kit.create(partitions=3)
    resource = ConfigResource(ResourceType.TOPIC, "t")
    await kit.broker.controller.legacy_alter_configs([(resource, {"retention.ms": "1000"})])
    assert kit.broker.partitions.get("t", 0).log.config.retention_ms == 1_000
    assert kit.on_loop == []


async def test_truncation_stops_when_the_leader_changes_meanwhile(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    truncating = asyncio.create_task(kit.broker.partitions.truncate(partition, 5))
    await asyncio.sleep(0)  # it waits for its thread
    partition.follow(PartitionRegistration((1,), (1,), 1, partition.leader_epoch + 1, 0))
    assert not await truncating
    assert partition.log_end_offset == 20, "the former leader's word counts no more"
    await kit.write(partition)


class ReplayThreads:
    """Notes which thread replays producers, and calls `meanwhile` there before the first replay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_loop: list[bool] = []
        self.meanwhile: Callable[[], None] = lambda: None
        loop_thread = threading.get_ident()
        replay = producer_state_loader.replay_to

        def noted(*arguments: Any) -> Any:
            self.on_loop.append(threading.get_ident() == loop_thread)
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            meanwhile()
            return replay(*arguments)

        monkeypatch.setattr(log_truncation, "replay_to", noted)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> ReplayThreads:
    return ReplayThreads(monkeypatch)


def on_loop(call: Callable[[], None]) -> Callable[[], None]:
    """A call that a thread makes: runs on the loop, and has returned when the thread goes on."""
    loop = asyncio.get_running_loop()

    async def called() -> None:
        call()

    return lambda: asyncio.run_coroutine_threadsafe(called(), loop).result()


@pytest.mark.parametrize(("end", "replays"), [(1, 2), (7, 2), (19, 1)])
async def test_truncation_replays_producers_off_the_loop(
    kit: Kit, threads: ReplayThreads, end: int, replays: int
) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    assert await kit.broker.partitions.truncate(partition, end)
    assert threads.on_loop == [False] * replays


async def test_truncation_stops_when_the_leader_changes_during_the_replay(kit: Kit, threads: ReplayThreads) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)

    def lead_and_append() -> None:
        partition.follow(PartitionRegistration((1,), (1,), 1, partition.leader_epoch + 1, 0))
        produce(partition, "of the next term", producer_id=3, producer_epoch=0, base_sequence=0)

    threads.meanwhile = on_loop(lead_and_append)
    assert not await kit.broker.partitions.truncate(partition, 5)
    assert (partition.log_end_offset, partition.failure) == (21, None)
    assert partition.log.producers.get(3) is not None


async def test_truncation_stops_when_the_topic_is_deleted_during_the_replay(kit: Kit, threads: ReplayThreads) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    topic = kit.broker.image.topics["t"]

    def delete() -> None:
        for _ in kit.broker.partitions.delete_topic_logs(topic):
            pass

    threads.meanwhile = on_loop(delete)
    assert not await kit.broker.partitions.truncate(partition, 5)
    assert kit.on_loop == []


async def test_truncation_replays_again_when_segments_change_during_the_replay(
    kit: Kit, threads: ReplayThreads
) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    start = partition.log.segments[1].base_offset
    threads.meanwhile = on_loop(lambda: partition.move_log_start(start))
    assert await kit.broker.partitions.truncate(partition, 19)
    assert (partition.log_start_offset, partition.log_end_offset) == (start, 19)
    assert threads.on_loop == [False, False]


async def test_truncation_of_a_log_that_turns_out_corrupt_keeps_later_producers(
    kit: Kit, threads: ReplayThreads
) -> None:
    partition = await kit.create(**{"internal.segment.bytes": "100000"})
    for number in range(4):
        await kit.write(partition, producer_id=number, producer_epoch=0, base_sequence=0)
    await kit.follows(partition)
    second = [position for position, _ in partition.log.active.headers()][1]
    kit.files.flip_bit(partition.log.active.path, byte=second + 8 + 3, bit=0)  # in its length
    assert await kit.broker.partitions.truncate(partition, 3)
    assert (partition.log_end_offset, partition.failure, kit.on_loop) == (3, None, [])
    assert [hole.base_offset for hole in partition.log.active.holes] == [1]
    assert sorted(entry.producer_id for entry in partition.log.producers.active()) == [0, 2]
    assert threads.on_loop == [False, False]


async def test_failed_read_of_a_replay_leaves_the_log_as_it_was(kit: Kit) -> None:
    partition = await kit.create()
    await kit.write(partition, 20)
    await kit.follows(partition)
    ends = [segment.next_offset for segment in partition.log.segments]
    kit.files.fail("read", path="*.log")
    with pytest.raises(StorageError):
        await kit.broker.partitions.truncate(partition, 18)
    kit.files.heal()
    assert [segment.next_offset for segment in partition.log.segments] == ends


@pytest.mark.parametrize("end", [5, 6])
async def test_truncation_that_rewrites_aborted_transactions_syncs_off_the_loop(kit: Kit, end: int) -> None:
    partition = await kit.create(**{"internal.segment.bytes": "100000"})
    for number in range(4):
        await kit.write(partition, producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
        partition.append_marker(EndMarker(ControlType.ABORT, 0), Producer(7, 0), 1_000, uses_tv2=False)
    await kit.follows(partition)
    partition.log.active.aborted.close()
    kit.files.open(partition.log.active.path.replace(".log", ".txnindex")).append(b"torn")
    assert await kit.broker.partitions.truncate(partition, end)
    assert kit.on_loop == []
    assert [txn.last_offset for txn in partition.log.active.aborted.entries_from(0)] == [1, 3, 5][: end // 2]
