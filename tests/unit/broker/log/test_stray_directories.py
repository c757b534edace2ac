"""Directories that belong to no replica any more: removed where their records are elsewhere or deleted, else kept."""

import errno
from collections.abc import AsyncIterator
from fnmatch import fnmatch
from uuid import UUID

import pytest

from headrace.broker.controller.controller import Controller
from headrace.broker.server import Broker
from headrace.config.settings import Settings
from headrace.core.controller.config_control import Alteration
from headrace.core.controller.topic_control import FORMER_IDS_MAX, NewTopic
from headrace.core.image import records
from headrace.core.image.deltas import PartitionsChanged
from headrace.core.image.model import NO_LEADER, ConfigResource, PartitionRegistration, ResourceType
from headrace.metadata.embedded import MemoryStore
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition
from headrace.storage.directory.partition_metadata_file import FILE_NAME as METADATA_FILE
from headrace.storage.directory.stray_directories import STRAY_SUFFIX, StrayTotals
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import values_of
from tests.unit.broker.start_kit import LISTENER, PARTITIONS, TOPIC_CONFIGS, Machine, topic_id_of

DAY_MS = 24 * 3600 * 1000
RETENTION_MS = 7 * DAY_MS


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


class Cluster(Machine):
    """Node 1 with its disk; what other nodes change in the metadata meanwhile is written by `other`."""

    async def other(self) -> Controller:
        controller = Controller(self.store, Settings(node_id=2, data_dir="/data", listeners=(LISTENER,)), self.clock)
        await controller.catch_up()
        return controller

    async def lived(self) -> Broker:
        """Topic t with records, stopped cleanly; node 2 is there."""
        broker = await self.created()
        await self.store.commit({}, {records.broker_key(2): records.encode_broker((LISTENER,), None)})
        await self.store.commit({}, {records.session_key(2): records.encode_session()})
        self.produce(broker, 5)
        await broker.stop()
        return broker

    async def move(self, *states: PartitionRegistration) -> None:
        """What a reassignment leaves in the metadata, once it is done."""
        other = await self.other()
        topic_id = other.image.topics["t"].topic_id
        writes: dict[str, bytes | None] = dict(records.block_writes(topic_id, states, range(len(states))))
        await self.store.commit({key: other.image.version_of(key) for key in writes}, writes)

    async def delete(self) -> None:
        rows = await (await self.other()).delete_topics(["t"])
        assert not isinstance(rows["t"], HeadraceError)

    async def create(self) -> UUID:
        controller = await self.other()
        states = dict.fromkeys(range(PARTITIONS), (1,))
        new = NewTopic("t", assignments=states, configs=TOPIC_CONFIGS)
        rows = await controller.create_topics([new])
        assert not isinstance(rows["t"], HeadraceError), rows["t"]
        return controller.image.topics["t"].topic_id

    async def started(self) -> Broker:
        broker = await super().started()
        await broker.partitions.removals.finish()  # of what the process before has left
        return broker

    def directories(self) -> list[str]:
        return sorted(name for name in self.files.list("/data") if name.startswith("t-"))

    def strays(self) -> list[str]:
        return [name for name in self.directories() if name.endswith(STRAY_SUFFIX)]


async def remove_strays(broker: Broker) -> None:
    await broker._housekeeper.strays.remove()


async def expire_strays(cluster: Cluster, broker: Broker) -> None:
    """Two checks, as long after one another as strays are kept."""
    await remove_strays(broker)
    cluster.clock.advance_ms(RETENTION_MS)
    await remove_strays(broker)


def on(*replicas: int, leader: int = 2, epoch: int = 1) -> PartitionRegistration:
    return PartitionRegistration(replicas, replicas, leader, epoch, 5)


@pytest.fixture
async def cluster(files: SimFiles) -> Cluster:
    cluster = Cluster(files)
    await cluster.lived()
    return cluster


# Moved away


async def test_replica_moved_while_the_broker_was_away_is_kept_for_a_limited_time(cluster: Cluster) -> None:
    await cluster.move(on(2), on(2))
    broker = await cluster.started()
    await remove_strays(broker)
    cluster.clock.advance_ms(RETENTION_MS - 1)
    await remove_strays(broker)
    assert len(cluster.strays()) == PARTITIONS
    cluster.clock.advance_ms(1)
    await remove_strays(broker)
    assert not cluster.directories()
    await broker.stop()


async def test_only_the_moved_replica_is_removed(cluster: Cluster) -> None:
    await cluster.move(on(2), on(2, 1))
    broker = await cluster.started()
    await expire_strays(cluster, broker)
    assert cluster.directories() == ["t-1"]
    assert broker.partitions.get("t", 1).log_end_offset == 5


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (PartitionRegistration((2,), (), NO_LEADER, 1, 5), "no leader"),
        (PartitionRegistration((3,), (3,), 3, 1, 5), "the leader is not registered"),
        (PartitionRegistration((2, 3), (3,), 2, 1, 5), "the leader is not in sync"),
        (PartitionRegistration((2,), (2,), 2, -1, 5), "the metadata is older than the log"),
        (PartitionRegistration((2, 3), (2,), 2, 1, 5, adding=(3,)), "a reassignment is not done"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_replica_that_may_be_the_only_one_is_kept(
    cluster: Cluster, state: PartitionRegistration, reason: str
) -> None:
    await cluster.move(state, state)
    broker = await cluster.started()
    cluster.clock.advance_ms(100 * RETENTION_MS)
    await remove_strays(broker)
    assert len(cluster.strays()) == PARTITIONS, reason


async def test_kept_replica_is_removed_once_its_leader_is_there(cluster: Cluster) -> None:
    await cluster.move(*[PartitionRegistration((2,), (), NO_LEADER, 1, 5)] * 2)
    broker = await cluster.started()
    await remove_strays(broker)
    assert cluster.strays()
    await cluster.move(on(2), on(2))
    await broker.controller.catch_up()
    await expire_strays(cluster, broker)
    assert not cluster.directories()


async def test_replica_that_moves_back_is_copied_from_the_leader(cluster: Cluster) -> None:
    await cluster.move(on(2), on(2))
    broker = await cluster.started()
    await cluster.move(on(2, 1), on(2, 1))
    await broker.controller.catch_up()
    assert broker.partitions.get("t", 0).log_end_offset == 0
    await expire_strays(cluster, broker)
    assert cluster.directories() == ["t-0", "t-1"]


# Deleted, and created again


async def test_topic_deleted_while_the_broker_was_away_is_removed(cluster: Cluster) -> None:
    await cluster.delete()
    await cluster.started()
    assert not cluster.directories()


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_topic_recreated_while_the_broker_was_away_leaves_no_directory(cluster: Cluster, times: int) -> None:
    for _ in range(times):
        await cluster.delete()
        topic_id = await cluster.create()
    broker = await cluster.started()
    await remove_strays(broker)
    assert cluster.directories() == ["t-0", "t-1"]
    assert topic_id_of(broker) == topic_id
    assert values_of(broker.partitions.get("t", 0)) == []


async def test_restarts_and_recreations_accumulate_nothing(cluster: Cluster) -> None:
    for _ in range(6):
        for _ in range(2):
            await cluster.delete()
            await cluster.create()
        broker = await cluster.started()
        cluster.acked = {index: {} for index in range(PARTITIONS)}
        cluster.produce(broker, 3)
        await broker.stop()
    broker = await cluster.started()
    await remove_strays(broker)
    assert cluster.directories() == ["t-0", "t-1"]
    assert cluster.lost(broker) == []


async def test_config_change_keeps_the_ids_of_deleted_topics(cluster: Cluster) -> None:
    await cluster.delete()
    await cluster.create()
    resource = ConfigResource(ResourceType.TOPIC, "t")
    rows = await (await cluster.other()).alter_configs([(resource, [Alteration("retention.ms", 0, "1000")])])
    assert rows == {resource: None}
    await cluster.started()
    assert cluster.directories() == ["t-0", "t-1"]


async def test_ids_of_deleted_topics_are_limited(cluster: Cluster) -> None:
    for _ in range(FORMER_IDS_MAX + 3):
        await cluster.delete()
        newest = await cluster.create()
    image = (await cluster.other()).image
    assert len(image.topics["t"].former_ids) == FORMER_IDS_MAX
    assert newest not in image.topics["t"].former_ids
    broker = await cluster.started()
    await remove_strays(broker)
    assert len(cluster.strays()) == PARTITIONS, "the oldest id is not known as deleted any more"
    cluster.clock.advance_ms(RETENTION_MS)
    await remove_strays(broker)
    assert not cluster.strays()


# Unknown


async def reset_metadata(cluster: Cluster) -> None:
    """The metadata store is another one, of a cluster with the same id."""
    cluster_id = (await cluster.other()).image.cluster_id
    cluster.store = MemoryStore(cluster.clock)
    await cluster.store.commit({}, {records.CLUSTER: records.encode_field("id", cluster_id)})


async def test_unknown_topic_is_kept_for_a_limited_time(cluster: Cluster) -> None:
    await reset_metadata(cluster)
    broker = await cluster.started()
    rows = await broker.controller.create_topics([NewTopic("another", 1, 1)])
    assert not isinstance(rows["another"], HeadraceError)
    await remove_strays(broker)
    cluster.clock.advance_ms(RETENTION_MS - 1)
    await remove_strays(broker)
    assert len(cluster.strays()) == PARTITIONS
    cluster.clock.advance_ms(1)
    await remove_strays(broker)
    assert not cluster.strays()


async def test_age_counts_over_restarts(cluster: Cluster) -> None:
    await reset_metadata(cluster)
    broker = await cluster.started()
    await broker.controller.create_topics([NewTopic("another", 1, 1)])
    await remove_strays(broker)
    await broker.stop()
    cluster.clock.advance_ms(RETENTION_MS)
    await remove_strays(await cluster.started())
    assert not cluster.strays()


async def test_metadata_without_any_topic_removes_nothing(cluster: Cluster) -> None:
    await reset_metadata(cluster)
    broker = await cluster.started()
    for _ in range(3):
        await remove_strays(broker)
        cluster.clock.advance_ms(100 * RETENTION_MS)
    assert len(cluster.strays()) == PARTITIONS


async def test_another_clusters_metadata_touches_no_directory(cluster: Cluster) -> None:
    cluster.store = MemoryStore(cluster.clock)
    await cluster.store.commit({}, {records.CLUSTER: records.encode_field("id", "another-cluster")})
    with pytest.raises(HeadraceError, match="belongs to node 1 of cluster"):
        await cluster.started()
    assert cluster.directories() == ["t-0", "t-1"]


@pytest.mark.parametrize("byte", [11, 17, 22, 30, 42])
async def test_flipped_bit_in_the_topic_id_removes_no_replica(cluster: Cluster, byte: int) -> None:
    cluster.files.flip_bit(f"/data/t-0/{METADATA_FILE}", byte=byte, bit=1)
    broker = await cluster.started()
    await remove_strays(broker)
    assert cluster.directories() == ["t-0", "t-1"]
    assert cluster.lost(broker) == []


@pytest.mark.parametrize("retry", ["change", "checkpoint"])
async def test_topic_id_not_written_on_a_full_disk_is_written_later(cluster: Cluster, retry: str) -> None:
    before = cluster.files.read(f"/data/t-0/{METADATA_FILE}")
    cluster.files.remove(f"/data/t-0/{METADATA_FILE}")
    cluster.files.fail("append", path=f"*/{METADATA_FILE}.tmp", error=errno.ENOSPC, sticks=True)
    broker = await cluster.started()
    await broker._housekeeper._checkpoint()
    assert METADATA_FILE not in cluster.files.list("/data/t-0")
    cluster.files.heal()
    if retry == "change":
        await broker.partitions.follow(PartitionsChanged(broker.image.topics["t"], ()), broker.image, {})
    else:
        await broker._housekeeper._checkpoint()
    assert cluster.files.read(f"/data/t-0/{METADATA_FILE}") == before


async def test_topic_id_is_not_written_to_a_later_topics_directory(cluster: Cluster) -> None:
    cluster.files.remove(f"/data/t-0/{METADATA_FILE}")
    cluster.files.fail("append", path=f"*/{METADATA_FILE}.tmp", error=errno.ENOSPC, sticks=True)
    broker = await cluster.started()
    cluster.files.heal()
    await cluster.delete()
    topic_id = await cluster.create()
    await broker.controller.catch_up()
    await broker._housekeeper._checkpoint()
    assert broker.log_dir.topic_id_of(TopicPartition("t", 0)) == topic_id


async def test_unreadable_topic_id_of_a_moved_replica_is_kept_for_a_limited_time(cluster: Cluster) -> None:
    await cluster.move(on(2), on(2))
    cluster.files.replace(f"/data/t-0/{METADATA_FILE}", b"nonsense")
    broker = await cluster.started()
    await remove_strays(broker)
    assert len(cluster.strays()) == PARTITIONS
    cluster.clock.advance_ms(RETENTION_MS)
    await remove_strays(broker)
    assert not cluster.strays()


async def test_directory_without_records_is_removed(files: SimFiles) -> None:
    cluster = Cluster(files)
    broker = await cluster.created()
    await broker.stop()
    await reset_metadata(cluster)
    broker = await cluster.started()
    await remove_strays(broker)
    assert not cluster.directories()


# Of earlier versions


async def test_stray_directories_of_earlier_versions_are_removed_too(cluster: Cluster) -> None:
    cluster.files.rename("/data/t-0", "/data/t-0.0123456789abcdef0123456789abcdef-stray")
    await cluster.delete()
    await cluster.create()
    broker = await cluster.started()
    await remove_strays(broker)
    assert cluster.directories() == ["t-0", "t-1"]


async def test_age_of_earlier_versions_strays_counts_from_the_first_look(cluster: Cluster) -> None:
    cluster.clock.advance_ms(100 * RETENTION_MS)
    cluster.files.rename("/data/t-0", "/data/t-0.0123456789abcdef0123456789abcdef-stray")
    await reset_metadata(cluster)
    broker = await cluster.started()
    await broker.controller.create_topics([NewTopic("another", 1, 1)])
    await remove_strays(broker)
    assert len(cluster.strays()) == PARTITIONS


async def test_long_name_of_an_earlier_versions_stray_is_shortened_to_remove_it(cluster: Cluster) -> None:
    stray = f"t-{'l' * 212}-0.{'0123456789abcdef' * 2}-stray"
    assert len(stray) == 255, "the suffix -delete would not fit"
    cluster.files.rename("/data/t-0", f"/data/{stray}")
    await cluster.delete()
    broker = await cluster.started()
    await remove_strays(broker)
    assert not cluster.directories()


# Directories and files that are no partition's


@pytest.mark.parametrize("name", ["backup-1", "t-7", "backup-1.0123456789abcdef0123456789abcdef-stray", "my-delete"])
async def test_foreign_directory_is_left_as_it_is(
    cluster: Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.files.make_dir(f"/data/{name}")
    cluster.files.replace(f"/data/{name}/important.sqlite", b"the only copy")
    cluster.files.replace(f"/data/{name}/application.log", b"not a segment")
    for _ in range(2):
        caplog.clear()
        broker = await cluster.started()
        await expire_strays(cluster, broker)
        await broker.stop()
        assert cluster.files.read(f"/data/{name}/important.sqlite") == b"the only copy"
        assert caplog.text.count("not a partition directory") == (name in ("backup-1", "t-7"))


@pytest.mark.parametrize("name", ["notes-2", "t-7", "notes-2.0123456789abcdef0123456789abcdef-stray"])
async def test_foreign_file_is_left_as_it_is(cluster: Cluster, name: str) -> None:
    cluster.files.replace(f"/data/{name}", b"a plain file")
    broker = await cluster.started()
    await expire_strays(cluster, broker)
    assert cluster.files.read(f"/data/{name}") == b"a plain file"


@pytest.mark.parametrize("name", ["x-\u00b2", "x-\u0663", "x-", "-1", "x-1_0", "t-00", "my t-0"])
async def test_name_without_a_decimal_partition_number_is_ignored(cluster: Cluster, name: str) -> None:
    cluster.files.make_dir(f"/data/{name}")
    broker = await cluster.started()
    assert name in cluster.files.list("/data")
    assert cluster.lost(broker) == []


@pytest.mark.parametrize("kept", [METADATA_FILE, "*.log"])
async def test_unclaimed_directory_with_metadata_or_a_segment_becomes_a_stray(cluster: Cluster, kept: str) -> None:
    for name in cluster.files.list("/data/t-0"):
        if not fnmatch(name, kept):
            cluster.files.remove(f"/data/t-0/{name}")
    await reset_metadata(cluster)
    await cluster.started()
    assert len(cluster.strays()) == PARTITIONS


async def test_rows_of_an_emptied_directory_describe_no_later_topic(cluster: Cluster) -> None:
    cluster.files.remove_tree("/data/t-0")
    cluster.files.make_dir("/data/t-0")
    await cluster.delete()
    broker = await cluster.started()
    assert "t-0" in cluster.directories()
    await cluster.create()
    await broker.controller.catch_up()
    assert broker.partitions.get("t", 0).log_end_offset == 0
    assert values_of(broker.partitions.get("t", 0)) == []


# Failures and figures


@pytest.mark.parametrize("operation", ["rename", "remove_tree", "list", "read", "open"])
async def test_failed_removal_is_retried(cluster: Cluster, operation: str) -> None:
    await cluster.move(on(2), on(2))
    broker = await cluster.started()
    await remove_strays(broker)
    cluster.clock.advance_ms(RETENTION_MS)
    cluster.files.fail(operation, path="/data/t-0*", sticks=True)
    await remove_strays(broker)
    cluster.files.heal()
    await remove_strays(broker)
    await broker.stop()
    await cluster.started()
    assert not cluster.directories()


async def test_stray_directories_are_counted(cluster: Cluster) -> None:
    await reset_metadata(cluster)
    broker = await cluster.started()
    await broker._housekeeper.strays.look()
    totals = broker.log_dir.strays
    assert totals.directories == PARTITIONS
    assert totals.size_bytes > 500
    await broker.controller.create_topics([NewTopic("another", 1, 1)])
    await remove_strays(broker)
    cluster.clock.advance_ms(RETENTION_MS)
    await remove_strays(broker)
    assert broker.log_dir.strays == StrayTotals(0, 0)
