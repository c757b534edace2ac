"""A data directory that an older copy of itself has replaced: its replicas lack records that were acknowledged."""

import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from headrace.broker.controller.controller import Controller
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image import records
from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.store import LeaseId, OutcomeUnknown, Snapshot, Unavailable
from headrace.process.runtime import SystemClock
from headrace.storage.directory.checkpoint_files import REGISTRATIONS
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.file_system import OsFileSystem
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import batch_of

ENDPOINT = Listener("PLAINTEXT", "127.0.0.1", 0)


class Host:
    """A broker with a cluster's store, and its data directory."""

    def __init__(self, directory: Path) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock)
        self.data, self.copy = directory / "data", directory / "copy"

    async def started(self) -> Broker:
        settings = Settings(listeners=(ENDPOINT,), data_dir=str(self.data))
        broker = Broker(settings, self.clock, OsFileSystem(), self.store, shares_store=True)
        try:
            await broker.start()
        except Exception:
            await broker.stop()
            raise
        return broker

    async def run(self, records: int) -> None:
        """One clean run of the broker."""
        broker = await self.started()
        if "t" not in broker.image.topics:
            await broker.controller.create_topics([NewTopic("t", 1, 1)])
        for _ in range(records):
            self.append(broker)
        await broker.stop()

    async def live_on_an_empty_disk(self) -> None:
        """Until the replica on it leads; then the broker stops cleanly."""
        shutil.rmtree(self.data)
        broker = await self.started()
        await broker.controller.states.elect_leaders({"t": [0]}, unclean=True)
        assert broker.image.topics["t"].partitions[0].lost == ()
        await broker.stop()

    def append(self, broker: Broker) -> None:
        partition = broker.partitions.get("t", 0)
        partition.append(memoryview(bytearray(batch_of(["x"]))), -1, self.clock.wall_ms())

    def take_copy(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.data, self.copy)

    def restore(self) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self.copy, self.data)

    async def state_after_start(self) -> PartitionRegistration:
        broker = await self.started()
        state = broker.image.topics["t"].partitions[0]
        await broker.stop()
        return state


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    await host.run(records=1)
    shutil.copytree(host.data, host.copy)
    yield host
    await host.store.close()


async def fail(*_: object, **__: object) -> None:
    raise ValueError("no")


async def test_replica_in_an_older_copy_is_not_elected(host: Host) -> None:
    await host.run(records=1)
    host.restore()
    state = await host.state_after_start()
    assert (state.leader, state.isr) == (NO_LEADER, ())
    assert (await host.state_after_start()).leader == NO_LEADER, "the next start finds the same replicas"


async def test_replica_in_the_newest_copy_is_elected(host: Host) -> None:
    host.restore()
    assert (await host.state_after_start()).leader == 1


@pytest.mark.parametrize("later_runs", [0, 1])
@pytest.mark.parametrize("moment", ["before records", "between records", "after records"])
async def test_copy_made_while_the_broker_ran_is_older_after_its_clean_stop(
    host: Host, moment: str, later_runs: int
) -> None:
    """Its logs lack what was written afterwards, and it has the count of the run that it was made in."""
    broker = await host.started()
    for now in ("before records", "between records", "after records"):
        if now == moment:
            host.take_copy()
        if now != "after records":
            host.append(broker)
    await broker.stop()
    for _ in range(later_runs):
        await host.run(records=0)
    host.restore()
    state = await host.state_after_start()
    assert (state.leader, state.isr) == (NO_LEADER, ())
    assert (await host.state_after_start()).leader == NO_LEADER, "the next start finds the same replicas"


async def test_copy_made_after_a_clean_stop_is_the_newest_until_the_next_start(host: Host) -> None:
    await host.run(records=1)
    host.take_copy()
    host.restore()
    assert (await host.state_after_start()).leader == 1
    host.restore()
    assert (await host.state_after_start()).leader == NO_LEADER


class Away(MemoryStore):
    """A store that does not respond while it is away."""

    is_away = False

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        if self.is_away and records.broker_key(1) in writes:
            raise Unavailable("away")
        return await super().commit(expect, writes, lease)


async def test_stop_that_cannot_be_counted_in_the_metadata_leaves_a_current_directory(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.store = Away(host.clock)
    shutil.rmtree(host.data)
    broker = await host.started()
    await broker.controller.create_topics([NewTopic("t", 1, 1)])
    host.append(broker)
    host.store.is_away = True
    await broker.stop()
    assert "Clean stop not counted" in caplog.text
    host.store.is_away = False
    assert (await host.state_after_start()).leader == 1


async def test_stop_of_a_replaced_process_leaves_the_registration_of_the_other(host: Host) -> None:
    broker = await host.started()
    key = records.broker_key(1)
    entry = (await host.store.load(key)).entries[key]
    await host.store.commit({}, {key: entry.value})  # of another process
    registered = (await host.store.load(key)).entries[key]
    await broker.stop()
    assert (await host.store.load(key)).entries[key] == registered


async def test_copy_is_older_after_a_start_that_failed_later(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(LogDirectory, "begin_writing", fail)
        with pytest.raises(OSError, match="no"):
            await host.started()
    host.restore()
    assert (await host.state_after_start()).leader == NO_LEADER


async def test_start_that_fails_early_leaves_the_copy_recognisable(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.run(records=1)
    host.restore()

    with monkeypatch.context() as patched:
        patched.setattr(
            "headrace.broker.controller.replication_control.ReplicationControl.handle_unclean_restart", fail
        )
        with pytest.raises(ValueError, match="no"):
            await host.started()
    assert (await host.state_after_start()).leader == NO_LEADER


async def test_empty_disk_continues_the_count(host: Host) -> None:
    """Otherwise the registrations of the new disk would be fewer than the metadata has counted, for ever."""
    await host.run(records=1)
    shutil.rmtree(host.data)
    assert (await host.state_after_start()).leader == NO_LEADER
    broker = await host.started()
    assert (
        int((host.data / REGISTRATIONS).read_text()) == broker.image.brokers[1].registrations == 7
    )  # each clean stop counts, too
    await broker.stop()


@pytest.mark.parametrize("content", ["", "many", "1.5"])
async def test_unreadable_count_is_an_older_copy(host: Host, content: str) -> None:
    (host.data / REGISTRATIONS).write_text(content)
    assert (await host.state_after_start()).leader == NO_LEADER


async def test_directory_of_an_earlier_version_is_trusted(host: Host) -> None:
    (host.data / REGISTRATIONS).unlink()
    entry = (await host.store.load(records.broker_key(1))).entries[records.broker_key(1)]
    await host.store.commit({}, {records.broker_key(1): entry.value.replace(b',"registrations":2', b"")})
    assert (await host.state_after_start()).leader == 1


async def test_former_disk_is_not_trusted_for_its_clean_mark(host: Host) -> None:
    await host.live_on_an_empty_disk()
    host.restore()
    assert (await host.state_after_start()).lost == (1,)
    assert (await host.state_after_start()).lost == (1,), "the next start finds the same replica"


async def test_start_that_fails_early_leaves_the_disk_recognizable(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.live_on_an_empty_disk()
    host.restore()
    with monkeypatch.context() as patched:
        patched.setattr(
            "headrace.broker.controller.replication_control.ReplicationControl.handle_unclean_restart", fail
        )
        with pytest.raises(ValueError, match="no"):
            await host.started()
    assert (await host.state_after_start()).lost == (1,)


class Lagging(MemoryStore):
    """Loads what the store had at `behind`, until a commit of this store's own client shows that it is old."""

    behind: Snapshot | None = None

    async def load(self, prefix: str) -> Snapshot:
        return self.behind or await super().load(prefix)

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        self.behind = None
        return await super().commit(expect, writes, lease)


async def test_older_copy_is_recognized_behind_an_old_load(host: Host) -> None:
    """The old load has the registration that the copy counts."""
    host.store = Lagging(host.clock)
    for directory in (host.data, host.copy):
        shutil.rmtree(directory)
    await host.run(records=1)
    shutil.copytree(host.data, host.copy)
    old = await host.store.load(records.ROOT)
    await host.run(records=1)
    host.restore()
    host.store.behind = old
    state = await host.state_after_start()
    assert (state.leader, state.isr) == (NO_LEADER, ())


async def test_registration_of_unknown_outcome_is_no_older_copy() -> None:
    """The count on disk is raised before the commit, so that it is never below the metadata's."""

    class Unsure(MemoryStore):
        commits = 0

        async def commit(self, *arguments: object, **options: object) -> int:
            revision = await super().commit(*arguments, **options)  # type: ignore[arg-type]
            self.commits += 1
            if self.commits == 1:
                raise OutcomeUnknown("committed, but the response is lost")
            return revision

    clock = SystemClock()
    store = Unsure(clock)
    with SimFiles() as files:
        log_dir = LogDirectory(files, "/data")
        for _ in range(2):
            controller = Controller(store, Settings(), clock)
            try:
                await controller.start(
                    [ENDPOINT],
                    directory="d",
                    registrations=log_dir.registrations,
                    count_registration=log_dir.count_registration,
                    alone=False,
                )
            except OutcomeUnknown:
                assert log_dir.registrations == 1
        assert not controller._is_older_copy(log_dir.registrations)
        assert LogDirectory(files, "/data").registrations == log_dir.registrations == 2
    await store.close()


def test_count_that_cannot_be_written_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with SimFiles() as files:
        log_dir = LogDirectory(files, "/data")
        files.fail("append", path="*registrations*", error=28)
        assert log_dir.count_registration(5) == 0
        assert "Registration not counted" in caplog.text
        assert LogDirectory(files, "/data").registrations == 0
