"""Partitions that could not be opened because the disk was full are opened when there is disk space (D7)."""

import errno
from collections.abc import AsyncIterator

import pytest

from headrace.broker.log.offline_log_retry import SHORT_LOOKS_PER_ATTEMPT, Reopening
from headrace.broker.reporting.broker_report import LogTotals
from headrace.broker.reporting.health_checks import checks_of
from headrace.broker.server import Broker
from headrace.core.image import records
from headrace.model.errors import DiskFull, StorageError
from headrace.telemetry.broker_metrics import OFFLINE_REPLICAS
from headrace.telemetry.health import Status
from headrace.testing import SimFiles
from tests.unit.broker.start_kit import ENDS, Machine

RECORDS = 5


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


async def machine_after(files: SimFiles, end: str, *, is_clustered: bool = False) -> Machine:
    machine = Machine(files, is_clustered=is_clustered)
    broker = await machine.created()
    machine.produce(broker, RECORDS)
    await ENDS[end](machine, broker)
    return machine


def offline(broker: Broker) -> list[str]:
    return sorted(map(str, broker.partitions.unopened()))


def reported_offline(broker: Broker) -> object:
    totals = LogTotals(broker.node_id, unopened=len(broker.partitions.unopened()))
    for _ in totals.look_at(broker.partitions.all()):
        pass
    return next(one.samples[0][1] for one in totals.families() if one.metric is OFFLINE_REPLICAS)


@pytest.mark.parametrize("is_clustered", [False, True])
@pytest.mark.parametrize("end", ["kill -9", "power failure"])
async def test_partition_is_opened_when_there_is_disk_space(files: SimFiles, end: str, is_clustered: bool) -> None:
    machine = await machine_after(files, end, is_clustered=is_clustered)
    files.fail("open", path="/data/t-0/*index", error=errno.ENOSPC, sticks=True)
    broker = await machine.started()
    assert offline(broker) == ["t-0"]
    assert machine.new_broker().log_dir.same_boot_as_last_run == (end == "kill -9")
    with pytest.raises(DiskFull):
        broker.partitions.get("t", 0)
    check = checks_of(broker)["logs"]
    assert check.status == Status.DEGRADED
    assert "until there is disk space" in check.detail
    assert reported_offline(broker) == 1
    reopening = Reopening(broker)
    await reopening.look()
    assert offline(broker) == ["t-0"]
    files.heal()
    await reopening.look()
    assert offline(broker) == []
    assert machine.new_broker().log_dir.same_boot_as_last_run, "every log has been recovered"
    assert checks_of(broker)["logs"].status == Status.OK
    assert reported_offline(broker) == 0
    assert not machine.lost(broker)
    machine.produce(broker, RECORDS)
    await broker.stop()
    broker = await machine.started()
    assert broker.log_dir.was_clean
    assert not machine.lost(broker)
    await broker.stop()


@pytest.mark.parametrize("end", ENDS)
async def test_any_file_operation_of_an_open_finds_the_disk_full(end: str) -> None:
    with SimFiles() as files:
        machine = await machine_after(files, end)
        files.operations.clear()
        await machine.started()
        operations = [one for one in files.operations if one[1].startswith("/data/t-0")]
    waited = 0
    for at, (operation, path) in enumerate(operations):
        with SimFiles() as files:
            machine = await machine_after(files, end)
            nth = operations[: at + 1].count((operation, path))
            files.fail(operation, path=path, nth=nth, error=errno.ENOSPC)
            broker = await machine.started()
            waiting = broker.partitions.waiting_for_space()
            waited += bool(waiting)
            await Reopening(broker).look()
            assert not broker.partitions.waiting_for_space(), (operation, path, nth)
            if waiting:
                assert not machine.lost(broker), (operation, path, nth)
                machine.produce(broker, RECORDS)
            await machine.lose_power()
            broker = await machine.started()
            assert not machine.lost(broker), (operation, path, nth)
            await broker.stop()
    assert waited > 3


async def test_attempts_are_rare_while_the_disk_is_full(files: SimFiles, caplog: pytest.LogCaptureFixture) -> None:
    machine = await machine_after(files, "kill -9")
    files.fail("open", path="/data/t-0/*.log", error=errno.ENOSPC, sticks=True)
    broker = await machine.started()
    files.capacity_bytes = 1
    files.operations.clear()
    reopening = Reopening(broker)
    for _ in range(2 * SHORT_LOOKS_PER_ATTEMPT):
        await reopening.look()
    attempts = [path for operation, path in files.operations if operation == "open" and path.startswith("/data/t-0/")]
    assert len(attempts) == 2
    assert caplog.text.count("t-0 is offline until") == 1, "one line per state change"
    await broker.stop()


async def test_other_errors_last_until_the_next_start(files: SimFiles) -> None:
    machine = await machine_after(files, "kill -9")
    files.fail("sync", path="/data/t-0/*", error=errno.EIO)
    broker = await machine.started()
    assert offline(broker) == ["t-0"]
    await Reopening(broker).look()
    await broker.controller.deliver_again([])
    with pytest.raises(StorageError):
        broker.partitions.get("t", 0)
    assert "then restart" in checks_of(broker)["logs"].detail
    await broker.stop()
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


async def test_partition_whose_files_are_gone_is_not_opened_late(files: SimFiles) -> None:
    """It would lead with an empty log, and other replicas would truncate theirs to follow it."""
    machine = await machine_after(files, "kill -9")
    for name in files.list("/data/t-0"):
        files.remove(f"/data/t-0/{name}")
    await replicate(machine)
    files.fail("open", path="/data/t-0/*", error=errno.ENOSPC, sticks=True)
    broker = await machine.started()
    files.heal()
    await Reopening(broker).look()
    with pytest.raises(StorageError, match="restart"):
        broker.partitions.get("t", 0)
    await broker.stop()


async def replicate(machine: Machine) -> None:
    """The topic's partitions have another replica, which is not in sync."""
    image = machine.new_broker().image
    snapshot = await machine.store.load(records.ROOT)
    image.apply(snapshot.revision, {entry.key: entry.value for entry in snapshot.entries.values()})
    topic = image.topics["t"]
    states = [state._replace(replicas=(1, 2)) for state in topic.partitions]
    await machine.store.commit({}, dict(records.block_writes(topic.topic_id, states, range(len(states)))))


async def test_error_of_an_unopened_partition_does_not_grow(files: SimFiles) -> None:
    machine = await machine_after(files, "kill -9")
    files.fail("open", path="/data/t-0/*.log", error=errno.ENOSPC, sticks=True)
    broker = await machine.started()
    lengths = set()
    for _ in range(3):
        with pytest.raises(DiskFull) as refused:
            broker.partitions.get("t", 0)
        lengths.add(len(refused.traceback))
    assert len(lengths) == 1
    await broker.stop()
