"""Every step of startup and shutdown fails once, after every kind of stop: no acknowledged record is lost.

A start that fails before it opens the logs leaves the directory as trusted as it was. A stop marks the directory clean
only if the start was complete and every step of the stop succeeded.
"""

import ast
import asyncio
import contextlib
import errno
import inspect
import textwrap
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import pytest

from headrace.broker import server as broker_module
from headrace.broker.controller.restored_metadata import raise_leader_epochs, raise_producer_ids
from headrace.broker.replication.membership import Membership
from headrace.broker.runtime.shutdown_steps import StopSteps
from headrace.broker.server import Broker
from headrace.core.controller.cluster_control import DuplicateBroker
from headrace.core.controller.topic_control import NewTopic
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.model.errors import StorageError
from headrace.testing import SimFiles
from tests.unit.broker.start_kit import ENDS, Machine, try_to_start

RECORDS = 5


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


class StepFailed(Exception):
    """What a step raises in these tests."""


def failing(owner: Callable[[Broker], Any], name: str, error: Exception | None = None) -> Callable[[Broker], None]:
    """Makes a step raise."""

    def spoil(broker: Broker) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error or StepFailed(name)

        setattr(owner(broker), name, fail)

    return spoil


# Steps before the logs are opened: they change nothing that a later start relies on.
EARLY_STEPS: dict[str, Callable[[Broker], None]] = {
    "port in use": failing(lambda broker: broker.server, "bind", OSError(errno.EADDRINUSE, "in use")),
    "metadata store": failing(lambda broker: broker.controller, "start"),
    "clock check": failing(lambda broker: broker, "_check_cluster"),
    "wrong cluster id": failing(lambda broker: broker.log_dir, "check_owner", StorageError("another cluster's")),
    "directory id": failing(lambda broker: broker.log_dir, "directory_id", StorageError("EIO")),
    "duplicate broker id": failing(lambda broker: broker.controller, "start", DuplicateBroker("it runs")),
    "claim": failing(lambda broker: broker.log_dir, "claim", StorageError("EIO")),
    "first write": failing(lambda broker: broker.log_dir, "begin_writing", StorageError("EIO")),
}
# Steps after that: the stop that follows closes complete logs.
LATE_STEPS: dict[str, Callable[[Broker], None]] = {
    "listen to metadata": failing(lambda broker: broker.controller, "on_change"),
    "leader epochs": failing(lambda _: broker_module, "raise_leader_epochs"),
    "producer ids": failing(lambda _: broker_module, "raise_producer_ids"),
    "boot id": failing(lambda broker: broker.partitions, "end_recovery", StorageError("EIO")),
    "membership": failing(lambda broker: broker.membership, "start"),
    "damaged replicas": failing(lambda broker: broker.membership._health, "leave_damaged"),  # type: ignore[union-attr]
    "disk space": failing(lambda broker: broker.membership._health, "look_at_disk"),  # type: ignore[union-attr]
    "session": failing(lambda broker: broker.membership._session, "begin"),  # type: ignore[union-attr]
    "keep session": failing(lambda broker: broker.membership._session, "keep"),  # type: ignore[union-attr]
    "throttles": failing(lambda broker: broker.membership.throttles, "start"),  # type: ignore[union-attr]
    "fetchers": failing(lambda broker: broker.membership._fetchers, "start"),  # type: ignore[union-attr]
    "isr keeper": failing(lambda broker: broker.membership.isr_keeper, "start"),  # type: ignore[union-attr]
    "control loop": failing(lambda broker: broker.membership._control, "start"),  # type: ignore[union-attr]
    "health": failing(lambda broker: broker.membership._health, "start"),  # type: ignore[union-attr]
    "groups": failing(lambda broker: broker, "_start_groups"),
    "transactions": failing(lambda broker: broker, "_start_transactions"),
    "listener": failing(lambda broker: broker.server, "serve"),
    "housekeeping": failing(lambda broker: broker._housekeeper, "start"),
}
# Every call that a start makes, with the step above that makes it fail. A call that is added to one of these functions
# has to be added here, and a step or a test for its failure with it.
START_CALLS: dict[Callable[..., Any], dict[str, str]] = {
    Broker.start: {
        "self.server.bind": "port in use",
        "self._register": "metadata store",
        "self.partitions.load": "first write",  # and test_load_failing_at_a_partition_is_unclean
        "self.controller.on_change": "listen to metadata",
        "raise_leader_epochs": "leader epochs",
        "raise_producer_ids": "producer ids",
        "self.partitions.end_recovery": "boot id",
        "self.membership.start": "membership",
        "self._start_groups": "groups",
        "self.server.serve": "listener",
        "self._housekeeper.start": "housekeeping",
        "self._start_transactions": "transactions",
    },
    Broker._register: {
        "self.log_dir.directory_id": "directory id",
        "self.controller.start": "metadata store",
        "self.log_dir.claim": "claim",
    },
    Membership.start: {
        "self._broker.controller.follow": "metadata store",  # runs in a task, which retries
        "self._health.leave_damaged": "damaged replicas",
        "self._health.look_at_disk": "disk space",
        "self._session.begin": "session",
        "self._session.keep": "keep session",
        "self.throttles.start": "throttles",
        "self._fetchers.start": "fetchers",
        "self.isr_keeper.start": "isr keeper",
        "self._control.start": "control loop",
        "self._health.start": "health",
    },
}
# Calls that only read a value, wait or log.
HARMLESS_CALLS = {
    "self.controller.broker_configs", "self.controller.deleted_topic_ids", "asyncio.create_task", "asyncio.sleep",
    "asyncio.get_running_loop", "uuid4", "loop.time", "self.settings.integer", "self.advertised", "uuid_to_text",
    "log.warning",
}  # fmt: skip
STOP_STEPS: dict[str, Callable[[Broker], None]] = {
    "hand over": failing(lambda broker: broker.membership, "controlled_shutdown"),
    "close listener": failing(lambda broker: broker.server, "close"),
    "stop membership": failing(lambda broker: broker.membership, "stop"),
    "close peers": failing(lambda broker: broker.peers, "close"),
    "close produce": failing(lambda broker: broker.produce, "close"),
    "stop housekeeping": failing(lambda broker: broker._housekeeper, "stop"),
    "close groups": failing(lambda broker: broker.groups, "close"),
    "close dispatcher": failing(lambda broker: broker.dispatcher, "close"),
    "close transactions": failing(lambda broker: broker.transactions, "close"),
    "close group commit": failing(lambda broker: broker.group_commit, "close"),
}
STOP_STEPS_AFTER_LOGS: dict[str, Callable[[Broker], None]] = {
    "stop controller": failing(lambda broker: broker.controller, "stop"),
    "leave": failing(lambda broker: broker.membership, "leave"),
}


async def machine_after(
    files: SimFiles, end: str, *, is_clustered: bool = False, has_coordinators: bool = False
) -> Machine:
    """A node that has acknowledged records in each of two runs; the last one ended as named."""
    machine = Machine(files, is_clustered=is_clustered)
    broker = await machine.created()
    machine.produce(broker, RECORDS)
    await broker.stop()
    if has_coordinators:
        await create_internal_topics(machine)
    broker = await machine.started()
    machine.produce(broker, RECORDS)
    await ENDS[end](machine, broker)
    return machine


async def create_internal_topics(machine: Machine) -> None:
    broker = await machine.started()
    topics = [NewTopic(name, 1, 1) for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)]
    rows = await broker.controller.create_topics(topics)
    assert not any(isinstance(row, Exception) for row in rows.values())
    await broker.stop()


def trust_in(machine: Machine) -> tuple[bool, bool]:
    log_dir = machine.new_broker().log_dir
    return log_dir.was_clean, log_dir.same_boot_as_last_run


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", EARLY_STEPS)
async def test_failed_start_leaves_trust_unchanged(files: SimFiles, end: str, step: str) -> None:
    machine = await machine_after(files, end)
    before = trust_in(machine)
    for _ in range(2):
        assert await try_to_start(machine.new_broker(), EARLY_STEPS[step])
        assert trust_in(machine) == before
    broker = await machine.started()
    assert broker.log_dir.was_clean == (end == "clean stop"), "recovery runs exactly if it is needed"
    assert not machine.lost(broker)
    machine.produce(broker, RECORDS)
    assert not machine.lost(broker)
    await broker.stop()


@pytest.mark.parametrize("end", ENDS)
async def test_cancel_during_registration_keeps_trust(files: SimFiles, end: str) -> None:
    machine = await machine_after(files, end)
    before = trust_in(machine)
    broker = machine.new_broker()
    registering = asyncio.Event()

    async def register(*_: object, **__: object) -> None:
        registering.set()
        await asyncio.Event().wait()

    broker.controller.start = register  # type: ignore[method-assign]
    start = asyncio.create_task(broker.start())
    await registering.wait()
    start.cancel()
    await asyncio.wait((start,))
    await broker.stop()
    assert trust_in(machine) == before
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("nth", [1, 2])
async def test_load_failing_at_a_partition_is_unclean(files: SimFiles, end: str, nth: int) -> None:
    machine = await machine_after(files, end)
    broker = machine.new_broker()
    opened = broker.log_dir.open
    calls = 0

    def open_some(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise StepFailed
        return opened(*arguments, **options)

    broker.log_dir.open = open_some  # type: ignore[method-assign]
    assert await try_to_start(broker, lambda _: None)
    # The partitions that were not opened are as the power failure left them.
    assert trust_in(machine) == (False, end != "power failure")
    await machine.lose_power()
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", LATE_STEPS)
async def test_failure_after_load_closes_complete_logs(files: SimFiles, end: str, step: str) -> None:
    machine = await machine_after(files, end, is_clustered=True, has_coordinators=True)
    with mock.patch.multiple(  # as they were, afterwards
        broker_module, raise_leader_epochs=raise_leader_epochs, raise_producer_ids=raise_producer_ids
    ):
        assert await try_to_start(machine.new_broker(), LATE_STEPS[step])
    assert trust_in(machine)[0], "every log was open and is closed"
    await machine.lose_power()
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


async def test_kill_before_metadata_is_raised_keeps_the_power_failure(files: SimFiles) -> None:
    """The next start decides about restored metadata by what the power failure may have lost."""
    machine = await machine_after(files, "power failure", is_clustered=True)
    with mock.patch.object(broker_module, "raise_leader_epochs", side_effect=StepFailed), pytest.raises(StepFailed):
        await machine.started()
    await machine.kill()
    assert trust_in(machine) == (False, False)
    await machine.started()
    await machine.kill()
    assert trust_in(machine) == (False, True)


@pytest.mark.parametrize("step", STOP_STEPS)
async def test_failed_stop_step_prevents_the_clean_mark(files: SimFiles, step: str) -> None:
    machine = await machine_after(files, "clean stop", is_clustered=True)
    broker = await machine.started()
    _ = broker.groups, broker.transactions
    machine.produce(broker, RECORDS)
    STOP_STEPS[step](broker)
    ran = []
    leave = broker.membership.leave  # type: ignore[union-attr]
    broker.membership.leave = lambda: (ran.append("leave"), leave())[1]  # type: ignore[union-attr, func-returns-value]
    with pytest.raises(StepFailed):
        await broker.stop()
    assert ran == ["leave"], "the other steps run"
    assert not trust_in(machine)[0]
    await machine.lose_power()
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


async def test_every_stop_step_is_listed(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is added to `Broker.stop` has to be added to this test."""
    run = StopSteps.run
    count = 0

    async def counted(steps: StopSteps, step: Callable[[], Any]) -> None:
        nonlocal count
        count += 1
        await run(steps, step)

    monkeypatch.setattr(StopSteps, "run", counted)
    machine = Machine(files, is_clustered=True)
    broker = await machine.created()
    _ = broker.groups, broker.transactions
    await broker.stop()
    closing_logs = 1
    assert count == len(STOP_STEPS) + closing_logs + len(STOP_STEPS_AFTER_LOGS)


def calls_of(function: Callable[..., Any]) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("function", START_CALLS, ids=lambda function: function.__qualname__)
def test_every_start_step_is_listed(function: Callable[..., Any]) -> None:
    """A step that is added to a start has to be added to this test."""
    listed = START_CALLS[function]
    assert calls_of(function) - HARMLESS_CALLS == set(listed)
    assert set(listed.values()) <= EARLY_STEPS.keys() | LATE_STEPS.keys()


@pytest.mark.parametrize("end", ENDS)
async def test_failed_removal_of_files_leaves_no_log_open(files: SimFiles, end: str) -> None:
    machine = await machine_after(files, end)
    broker = await machine.started()
    machine.produce(broker, RECORDS)
    broker.partitions.removals.stop = lambda: fail_later()  # type: ignore[method-assign]
    closed = []
    for partition in broker.partitions.all():
        close = partition.log.close
        partition.log.close = lambda close=close: (closed.append(1), close())[1]  # type: ignore[method-assign, misc]
    with pytest.raises(StepFailed):
        await broker.stop()
    assert len(closed) == len(list(broker.partitions.all()))
    assert not trust_in(machine)[0]
    await machine.lose_power()
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


async def fail_later() -> None:
    raise StepFailed


@pytest.mark.parametrize("step", STOP_STEPS_AFTER_LOGS)
async def test_failed_step_after_the_logs_keeps_the_mark(files: SimFiles, step: str) -> None:
    machine = await machine_after(files, "kill -9", is_clustered=True)
    broker = await machine.started()
    STOP_STEPS_AFTER_LOGS[step](broker)
    with pytest.raises(StepFailed):
        await broker.stop()
    assert trust_in(machine)[0]
    await machine.lose_power()
    broker = await machine.started()
    assert not machine.lost(broker)
    await broker.stop()


async def file_operations(end: str, *, of_stop: bool) -> list[tuple[str, str, int]]:
    """What a start or a stop does with files: operation, path, and the how many-th of its kind it is."""
    with SimFiles() as disk:
        machine = await machine_after(disk, end)
        if not of_stop:
            disk.operations.clear()
        broker = await machine.started()
        if of_stop:
            machine.produce(broker, RECORDS)
            disk.operations.clear()
            await broker.stop()
        operations = list(disk.operations)
    return [(name, path, operations[: at + 1].count((name, path))) for at, (name, path) in enumerate(operations)]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("end", ENDS)
async def test_any_file_operation_of_a_start_fails(end: str, error: int) -> None:
    operations = await file_operations(end, of_stop=False)
    assert len(operations) > 30
    for operation, path, nth in operations:
        with SimFiles() as disk:
            machine = await machine_after(disk, end)
            disk.fail(operation, path=path, nth=nth, error=error)
            try:
                broker = machine.new_broker()
            except StorageError:
                pass
            else:
                await try_to_start(broker, lambda _: None)
            await check_next_start(machine, f"{operation} {path} {nth}")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("end", ENDS)
async def test_any_file_operation_of_a_stop_fails(end: str, error: int) -> None:
    operations = await file_operations(end, of_stop=True)
    assert len(operations) > 20
    for operation, path, nth in operations:
        with SimFiles() as disk:
            machine = await machine_after(disk, end)
            broker = await machine.started()
            machine.produce(broker, RECORDS)
            disk.fail(operation, path=path, nth=nth, error=error)
            with contextlib.suppress(StorageError):
                await broker.stop()
            await check_next_start(machine, f"{operation} {path} {nth}")


async def check_next_start(machine: Machine, fault: str) -> None:
    """After one more power failure, so that nothing counts that only the page cache holds."""
    machine.files.heal()
    await machine.lose_power()
    broker = await machine.started()
    assert not machine.lost(broker), fault
    machine.produce(broker, 1)
    await machine.kill()
    broker = await machine.started()
    assert not machine.lost(broker), fault
    await broker.stop()
