"""The partitions of a broker over its starts: one that cannot be opened is alone, none inherits offsets."""

import errno
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.core.image.deltas import ConfigsChanged, MetadataDelta, PartitionsChanged, TopicCreated, TopicDeleted
from headrace.core.image.metadata_image import MetadataImage, TopicImage
from headrace.core.image.model import ConfigResource, ResourceType
from headrace.model.errors import ErrorCode, NotLeader, StorageError, UnknownTopic, UnknownTopicId
from headrace.model.ids import TopicPartition
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.directory.partition_metadata_file import FILE_NAME as METADATA_FILE
from headrace.storage.io.file_system import FileSystem
from headrace.storage.log import Log
from headrace.testing import SimClock, SimFiles
from tests.unit.broker.partition_kit import CommitByHand, produce, state, values_of
from tests.unit.storage.log_kit import append

DATA = "/data"
CONFIGS = {"internal.segment.bytes": "400"}


def topic(name: str = "t", *, number: int = 7, partitions: int = 2, node: int = 1) -> TopicImage:
    return TopicImage(name, UUID(int=number << 64 | 1), (state(leader=node, isr=(node,)),) * partitions, CONFIGS)


class Run:
    """The partitions of one run of a broker, until its process ends one way or another."""

    def __init__(
        self, files: FileSystem, *topics: TopicImage, deleted: tuple[UUID, ...] = (), data: str = DATA
    ) -> None:
        self.commit = CommitByHand()
        self.log_dir = LogDirectory(files, data)
        self.log_dir.claim("cluster", 1, UUID(int=1))
        self.partitions = ReplicaManager(self.log_dir, SimClock(), 1, self.commit)  # type: ignore[arg-type]
        self.partitions.load(_image(*topics), {}, deleted)
        self.partitions.end_recovery()
        with suppress(RuntimeError):  # without an event loop, what was left over stays
            self.partitions.removals.remove_left_over()

    async def follow(self, event: MetadataDelta, *topics: TopicImage) -> None:
        await self.partitions.follow(event, _image(*topics), {})

    def write(self, count: int, name: str = "t", index: int = 0) -> None:
        partition = self.partitions.get(name, index)
        for _ in range(count):
            produce(partition, f"value {partition.log_end_offset}")
        self.commit.run()

    async def removed(self) -> None:
        await self.partitions.removals.finish()


class _Image:
    def __init__(self, topics: dict[str, TopicImage]) -> None:
        self.topics = topics


def _image(*topics: TopicImage) -> MetadataImage:
    return _Image({one.name: one for one in topics})  # type: ignore[return-value]


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def values(count: int, start: int = 0) -> list[str]:
    return [f"value {number}" for number in range(start, count)]


async def test_everything_is_there_after_a_clean_stop_and_after_a_crash(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(5)
    await run.partitions.close()
    run = Run(files, topic())
    assert run.log_dir.was_clean
    run.write(5)
    files.lose_power()
    run = Run(files, topic())
    assert not run.log_dir.was_clean
    assert values_of(run.partitions.get("t", 0)) == values(10)


# One that cannot be opened


@pytest.mark.parametrize("operation", ["open", "read", "list"])
async def test_d6_a_partition_that_cannot_be_opened_is_offline_and_alone(
    files: SimFiles, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(files, topic())
    run.write(3, index=0)
    run.write(3, index=1)
    files.fail(operation, path=f"{DATA}/t-0*", sticks=True)
    run = Run(files, topic())
    with pytest.raises(StorageError) as refused:
        run.partitions.get("t", 0)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(StorageError):
        run.partitions.get(topic().topic_id, 0)
    assert values_of(run.partitions.get("t", 1)) == values(3)
    assert "cannot be opened" in caplog.text
    await run.partitions.close()
    files.heal()
    run = Run(files, topic())
    assert not run.log_dir.was_clean, "a stop with a partition offline is not clean"
    assert values_of(run.partitions.get("t", 0)) == values(3)


async def test_partition_not_opened_after_power_loss_is_recovered_later(files: SimFiles) -> None:
    """The next process that opens it must not take the last one's end for that of the process that wrote it."""
    run = Run(files, topic())
    run.write(3)
    files.lose_power()
    files.fail("open", path=f"{DATA}/t-0*", sticks=True)
    assert Run(files, topic()).partitions.has_failed
    files.heal()
    for same_boot_as_last_run in (False, True):
        files.boots += 1  # the process is killed
        run = Run(files, topic())
        assert run.log_dir.same_boot_as_last_run is same_boot_as_last_run
        assert values_of(run.partitions.get("t", 0)) == values(3)


async def test_batch_before_its_epoch_survives_a_kill_during_recovery(files: SimFiles) -> None:
    """Power loss, a start that is killed before it opened the log, a start, and a start in a later leader epoch."""
    run = Run(files, topic(partitions=1))
    run.write(3)
    partition = run.partitions.get("t", 0)
    append(partition.log, "value 3", epoch=5)
    partition.log.active.file.sync()  # the kernel writes what it likes first
    files.lose_power()
    log_dir = LogDirectory(files, DATA)
    log_dir.begin_writing()
    for _ in range(2):
        files.boots += 1
        partition = Run(files, topic(partitions=1)).partitions.get("t", 0)
        assert partition.log.epochs.latest == 5
        assert values_of(partition) == values(4)


async def test_a_partition_that_cannot_be_created_is_offline_and_the_broker_is_not(files: SimFiles) -> None:
    run = Run(files)
    files.fail("open", path=f"{DATA}/t-0/*.log", error=errno.EIO)
    await run.follow(TopicCreated(topic()), topic())
    with pytest.raises(StorageError):
        run.partitions.get("t", 0)
    run.write(2, index=1)
    await run.follow(TopicDeleted(topic()))
    await run.removed()
    assert not [name for name in files.list(DATA) if name.startswith("t-")]


async def test_d6_a_log_that_cannot_be_closed_does_not_keep_others_from_it(
    files: SimFiles, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(files, topic())
    run.write(3, index=0)
    run.write(3, index=1)
    produce(run.partitions.get("t", 0), "not synced")
    files.fail("sync", path=f"{DATA}/t-0/*")
    await run.partitions.close()
    assert "goes offline" in caplog.text
    files.lose_power()
    run = Run(files, topic())
    assert not run.log_dir.was_clean
    assert values_of(run.partitions.get("t", 0)) == values(3)
    assert values_of(run.partitions.get("t", 1)) == values(3)


# Whose folder it is


@pytest.mark.parametrize("byte", [0, 3, 9, 11, 17, 22, 30, 42])
async def test_d5_a_flipped_bit_in_the_topic_id_costs_nothing(
    files: SimFiles, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(files, topic())
    run.write(4)
    await run.partitions.close()
    sound = files.read(f"{DATA}/t-0/{METADATA_FILE}")
    files.flip_bit(f"{DATA}/t-0/{METADATA_FILE}", byte=byte, bit=1)
    run = Run(files, topic())
    assert values_of(run.partitions.get("t", 0)) == values(4)
    if byte != 9:  # a later version of the file is read as this one
        assert "corrupt" in caplog.text
        assert files.read(f"{DATA}/t-0/{METADATA_FILE}") == sound


async def test_a_folder_of_another_topic_is_kept_aside(files: SimFiles, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(files, topic(number=7))
    run.write(4)
    await run.partitions.close()
    run = Run(files, topic(number=0xABCDEF))
    assert run.partitions.get("t", 0).log_end_offset == 0
    assert [name for name in files.list(DATA) if name.endswith("-stray")]
    assert "belongs to no topic" in caplog.text


async def test_the_folder_of_a_topic_that_was_deleted_during_the_crash_is_removed(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(4)
    await Run(files, deleted=(topic().topic_id,)).removed()
    assert not [name for name in files.list(DATA) if name.startswith("t-")]


@pytest.mark.parametrize("crash_after_write", [True, False])
async def test_a_topic_created_again_inherits_no_offset_from_the_one_before(
    files: SimFiles, crash_after_write: bool
) -> None:
    """The checkpoints go by name: what they say about a deleted topic must be gone before the name is used again."""
    run = Run(files, topic())
    run.write(20)
    run.partitions.get("t", 0).delete_records(15)
    await run.partitions.removals.settle_log_starts()
    run.partitions.checkpoint()
    await run.follow(TopicDeleted(topic()))
    again = topic(number=8)
    await run.follow(TopicCreated(again), again)
    if crash_after_write:
        run.write(3)
    await run.removed()
    files.lose_power()
    run = Run(files, again)
    partition = run.partitions.get("t", 0)
    count = 3 if crash_after_write else 0
    assert (partition.log_start_offset, partition.log_end_offset) == (0, count)
    assert values_of(partition) == values(count)


async def test_offsets_of_a_folder_that_went_away_while_we_were_down_are_forgotten(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(20)
    await run.partitions.close()
    for index in range(2):
        files.remove_tree(f"{DATA}/t-{index}")
    run = Run(files)
    await run.follow(TopicCreated(topic(number=8)), topic(number=8))
    run.write(2)
    files.lose_power()
    assert values_of(Run(files, topic(number=8)).partitions.get("t", 0)) == values(2)


# What is let go


@pytest.mark.parametrize("at_boundary", [True, False])
async def test_deleted_records_stay_deleted_over_a_power_cut(files: SimFiles, at_boundary: bool) -> None:
    run = Run(files, topic())
    run.write(20)
    partition = run.partitions.get("t", 0)
    start = partition.log.segments[3].base_offset + (0 if at_boundary else 1)
    assert partition.delete_records(start) == start
    await run.partitions.removals.settle_log_starts()
    files.lose_power()
    partition = Run(files, topic()).partitions.get("t", 0)
    assert partition.log_start_offset == start
    assert values_of(partition, start) == values(20, start)


async def test_d7_deleting_records_works_on_a_disk_that_is_full_to_the_last_byte(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(20)
    partition = run.partitions.get("t", 0)
    files.capacity_bytes = files._disk.used_bytes()
    with pytest.raises(StorageError):
        produce(partition, "no room")
    start = partition.log.segments[3].base_offset
    assert partition.delete_records(start) == start
    await run.partitions.removals.settle_log_starts()
    await run.removed()
    run.write(2)
    assert values_of(partition, start) == values(22, start)


async def test_d7_retention_works_on_a_disk_that_is_full_to_the_last_byte(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(20)
    partition = run.partitions.get("t", 0)
    files.capacity_bytes = files._disk.used_bytes()
    partition.move_log_start(partition.log.segments[3].base_offset)
    await run.removed()
    run.write(2)
    assert partition.log_end_offset == 22


# Who is asked for


async def test_rule_16_what_is_elsewhere_is_told_apart_from_what_is_not(files: SimFiles) -> None:
    elsewhere = topic("elsewhere", number=9, node=2)
    run = Run(files, topic(), elsewhere)
    for key in ("elsewhere", elsewhere.topic_id):
        with pytest.raises(NotLeader):
            run.partitions.get(key, 0)
        assert run.partitions.current_leader(key, 0) == (2, 0)
    with pytest.raises(UnknownTopic):
        run.partitions.get("t", 2)
    with pytest.raises(UnknownTopic):
        run.partitions.get("nobody", 0)
    with pytest.raises(UnknownTopicId):
        run.partitions.get(UUID(int=99), 0)


class Unscanned(dict[str, TopicImage]):
    def values(self) -> Any:
        raise AssertionError("a lookup by topic id must not scan all topics")


async def test_topic_ids_are_looked_up_without_a_scan(files: SimFiles) -> None:
    run = Run(files, topic())
    held, elsewhere = topic(), topic(number=8)._replace(name="elsewhere")
    for _ in run.partitions.follow_topic(elsewhere):
        pass
    run.partitions._topics = Unscanned(run.partitions._topics)
    assert [run.partitions.name_of(one.topic_id) for one in (held, elsewhere)] == ["t", "elsewhere"]
    assert run.partitions.current_leader(elsewhere.topic_id, 0) is not None
    for _ in run.partitions.delete_topic_logs(elsewhere):
        pass
    assert run.partitions.name_of(elsewhere.topic_id) is None


async def test_id_of_replaced_topic_is_unknown(files: SimFiles) -> None:
    run = Run(files, topic())
    for _ in run.partitions.follow_topic(topic(number=8)):
        pass
    assert run.partitions.name_of(topic().topic_id) is None
    assert run.partitions.name_of(topic(number=8).topic_id) == "t"


# Events of earlier commits than the image's


@pytest.mark.parametrize("resource", [ConfigResource(ResourceType.TOPIC, "t"), ConfigResource(ResourceType.BROKER, "")])
async def test_config_event_behind_the_image_changes_no_partition_state(
    files: SimFiles, resource: ConfigResource
) -> None:
    run = Run(files, topic())
    elected = (state(leader=2, isr=(1, 2)),) * 2
    await run.follow(ConfigsChanged(resource), topic()._replace(partitions=elected, configs={"retention.ms": "5"}))
    partition = run.partitions.get("t", 0)
    assert partition.leader == 1, "the election has an event of its own"
    is_topic = resource.type == ResourceType.TOPIC
    assert (partition.log.config.retention_ms == 5) == is_topic


async def test_config_event_behind_the_image_does_not_open_a_topic_of_the_same_name(files: SimFiles) -> None:
    run = Run(files, topic())
    successor = topic(number=8)
    await run.follow(ConfigsChanged(ConfigResource(ResourceType.TOPIC, "t")), successor)
    assert run.partitions.get("t", 0).topic_id == topic().topic_id
    await run.follow(TopicDeleted(topic()), successor)
    await run.follow(TopicCreated(successor), successor)
    assert run.partitions.get("t", 0) is run.partitions.get(successor.topic_id, 0)
    await run.removed()


async def test_exception_of_one_partition_does_not_keep_the_others_from_following(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(files)
    create = run.log_dir.create
    failing = [1]

    def fails_once(name: TopicPartition, *rest: Any, **named: Any) -> Log:
        if name.partition in failing:
            failing.remove(name.partition)
            raise RuntimeError("dictionary changed size during iteration")
        return create(name, *rest, **named)

    monkeypatch.setattr(run.log_dir, "create", fails_once)
    created = topic(partitions=4)
    with pytest.raises(RuntimeError, match="changed size"):
        await run.follow(TopicCreated(created), created)
    for index in (0, 2, 3):
        run.write(2, index=index)
        assert values_of(run.partitions.get("t", index)) == values(2)
    await run.follow(PartitionsChanged(created, ()), created)
    run.write(2, index=1)
    assert values_of(run.partitions.get("t", 1)) == values(2), "the next event of the topic tries again"
