"""Two processes with one broker id, as after a virtual machine or a data directory was copied: one of them serves."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker import server as broker_module
from headrace.broker.controller.controller import Controller
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller import cluster_control
from headrace.core.controller.cluster_control import DuplicateBroker
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision
from headrace.metadata.embedded import MemoryStore
from headrace.model.errors import NotLeader
from headrace.process.runtime import SystemClock
from headrace.storage.directory.directory_lock import DirectoryLock
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.file_system import OsFileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import batch_of

ENDPOINT = Listener("PLAINTEXT", "127.0.0.1", 0)


def registration(image: MetadataImage, incarnation: str, directory: str = "d") -> Decision[None]:
    return cluster_control.register(
        image,
        node_id=1,
        endpoints=[ENDPOINT],
        rack=None,
        configured_cluster_id=None,
        new_cluster_id="c",
        directory=directory,
        incarnation=incarnation,
        alone=False,
    )


def image_with_session() -> MetadataImage:
    image = MetadataImage()
    image.apply(1, registration(image, "boot lock").writes)
    image.apply(2, cluster_control.begin_session(image, 1, 1, lease=7).writes)
    return image


@pytest.mark.parametrize(
    ("incarnation", "directory"), [("other boot", "d"), ("", "d"), ("boot lock", "another directory")]
)
def test_other_incarnation_is_rejected_while_a_session_lasts(incarnation: str, directory: str) -> None:
    image = image_with_session()
    with pytest.raises(DuplicateBroker):
        registration(image, incarnation, directory)
    image.apply(3, {records.session_key(1): None})
    assert registration(image, incarnation, directory).writes


def test_same_incarnation_registers_while_its_old_session_lasts() -> None:
    assert registration(image_with_session(), "boot lock").writes


def test_unknown_incarnation_is_rejected_twice() -> None:
    image = MetadataImage()
    image.apply(1, registration(image, "").writes)
    image.apply(2, cluster_control.begin_session(image, 1, 1, lease=7).writes)
    with pytest.raises(DuplicateBroker):
        registration(image, "")


def test_registration_is_guarded_by_the_session_it_read() -> None:
    assert registration(MetadataImage(), "boot lock").unchanged == (records.session_key(1),)


def test_registration_of_an_earlier_version_has_no_incarnation() -> None:
    known = records.decode_broker(1, b'{"endpoints":[],"rack":null,"directory":"d"}', 5)
    assert (known.directory, known.incarnation) == ("d", "")


def test_copy_of_a_directory_has_another_incarnation(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    lock = DirectoryLock(str(original))
    first = LogDirectory(OsFileSystem(), str(original)).incarnation
    lock.release()
    lock = DirectoryLock(str(original))
    assert LogDirectory(OsFileSystem(), str(original)).incarnation == first != ""
    lock.release()
    shutil.copytree(original, copy)
    assert LogDirectory(OsFileSystem(), str(copy)).incarnation not in ("", first)


def test_host_restart_begins_another_incarnation() -> None:
    with SimFiles() as files:
        first = LogDirectory(files, "/data").incarnation
        files.boots += 1
        assert LogDirectory(files, "/data").incarnation == first, "the process was killed"
        files.lose_power()
        assert LogDirectory(files, "/data").incarnation != first


async def test_replaced_process_commits_nothing() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    original, clone = (Controller(store, Settings(), clock) for _ in range(2))
    await original.start([ENDPOINT], directory="d", incarnation="a", alone=False)
    await clone.start([ENDPOINT], directory="d", incarnation="b", alone=False)
    await clone.begin_session(await store.grant(60_000))
    assert await clone.allocate_producer_ids()
    with pytest.raises(DuplicateBroker):
        await original.allocate_producer_ids()
    await store.close()


class Cluster:
    """A store, and brokers with the same id."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock)
        self.running: list[Broker] = []

    async def started(self, data_dir: str, *, in_memory: bool = False) -> Broker:
        settings = Settings(listeners=(ENDPOINT,), data_dir=data_dir, storage="memory" if in_memory else "disk")
        files = MemoryFiles() if in_memory else OsFileSystem()
        broker = Broker(settings, self.clock, files, self.store, shares_store=True)
        self.running.append(broker)
        await broker.start()
        return broker

    async def stop(self) -> None:
        for broker in self.running:
            await broker.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.stop()
    await cluster.store.close()


def produce(broker: Broker) -> int:
    partition = broker.partitions.get("t", 0)
    return partition.append(memoryview(bytearray(batch_of(["x"]))), -1, broker.clock.wall_ms()).base_offset


async def test_clone_does_not_start_while_the_original_serves(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "DUPLICATE_GRACE_S", -3600.0)  # the first rejection is final
    original = await cluster.started(str(tmp_path / "original"))
    await original.controller.create_topics([NewTopic("t", 1, 1)])
    assert produce(original) == 0
    shutil.copytree(tmp_path / "original", tmp_path / "clone")
    with pytest.raises(DuplicateBroker):
        await cluster.started(str(tmp_path / "clone"))
    assert produce(original) == 1
    assert not original.controller.is_superseded


async def test_replaced_broker_stops_acknowledging(cluster: Cluster) -> None:
    broker = await cluster.started("/data", in_memory=True)
    assert broker.membership is not None
    await broker.controller.create_topics([NewTopic("t", 1, 1)])
    assert produce(broker) == 0
    another = records.encode_broker([ENDPOINT], None, "d", "another incarnation")
    await cluster.store.commit({}, {records.broker_key(1): another})
    await broker.controller.catch_up()
    with pytest.raises(NotLeader):
        produce(broker)
    with pytest.raises(NotLeader):
        broker.partitions.get("t", 0).check_leader()
    assert broker.membership.superseded.is_set()
