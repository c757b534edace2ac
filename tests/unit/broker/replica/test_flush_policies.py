"""A replica that comes back after a host crash is judged by the flush policy under which its records were written."""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest

from headrace.broker.controller.controller import Controller
from headrace.broker.server import Broker
from headrace.config.settings import Settings
from headrace.core.controller.config_control import Alteration, Operation
from headrace.core.image import records
from headrace.core.image.model import ConfigResource, PartitionRegistration, ResourceType
from headrace.storage.directory.unflushed_topics import FILE_NAME
from headrace.testing import SimFiles
from headrace.testing.simulation.files import PowerLost
from tests.unit.broker.partition_kit import produce
from tests.unit.broker.start_kit import LISTENER, Machine, SimBroker, topic_id_of

UNSYNCED = f"/data/{FILE_NAME}"
TOPIC = ConfigResource(ResourceType.TOPIC, "t")
DEFAULT = ConfigResource(ResourceType.BROKER, "")
Change = Callable[[Broker, str], Awaitable[None]]


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


class TwoReplicas(Machine):
    """Node 1 leads both partitions; node 2, which is away, is in sync as well."""

    policy = "fsync"  # in the configuration file

    def new_broker(self) -> Broker:
        broker = super().new_broker()
        settings = {"log.flush.policy": self.policy}
        given = Settings(node_id=1, data_dir="/data", listeners=(LISTENER,), broker_configs=settings)
        server = broker.server
        broker = SimBroker(given, self.clock, self.files, self.store)
        broker.server = server
        return broker

    async def created(self) -> Broker:
        broker = await super().created()
        states = [PartitionRegistration((1, 2), (1, 2), 1, 0, 0)] * 2
        writes: dict[str, bytes | None] = dict(records.block_writes(topic_id_of(broker), states, [0, 1]))
        await self.store.commit({key: broker.image.version_of(key) for key in writes}, writes)
        await broker.controller.catch_up()
        return broker

    async def another_broker(self) -> Broker:
        """As much of one as changes configs: another node of the cluster."""
        controller = Controller(self.store, Settings(node_id=2, data_dir="/data", listeners=(LISTENER,)), self.clock)
        await controller.catch_up()
        return SimpleNamespace(controller=controller)  # type: ignore[return-value]

    async def may_lack_records(self) -> bool:
        """Whether this broker leaves the ISR when it starts."""
        broker = await self.started()
        state = broker.image.topics["t"].partitions[0]
        return 1 not in state.isr


async def set_on_topic(broker: Broker, policy: str) -> None:
    alter = [Alteration("flush.policy", Operation.SET, policy)]
    assert await broker.controller.alter_configs([(TOPIC, alter)]) == {TOPIC: None}


async def set_as_default(broker: Broker, policy: str) -> None:
    alter = [Alteration("log.flush.policy", Operation.SET, policy)]
    assert await broker.controller.alter_configs([(DEFAULT, alter)]) == {DEFAULT: None}


async def set_flush_messages(broker: Broker, policy: str) -> None:
    """The other config that makes an acknowledgement wait for the disk."""
    value = "1" if policy == "fsync" else "1000"
    alter = [Alteration("flush.messages", Operation.SET, value)]
    rows = await broker.controller.alter_configs([(TOPIC, [*alter, Alteration("flush.policy", 0, "replicated")])])
    assert rows == {TOPIC: None}


changes = pytest.mark.parametrize("change", [set_on_topic, set_as_default, set_flush_messages])


def acked_unsynced(broker: Broker) -> bool:
    """Appends a record; whether it counts before it is synced."""
    partition = broker.partitions.get("t", 0)
    produce(partition, "unsynced", acks=1)
    return partition._durable_end_offset > partition.log.recovery_point


@changes
async def test_records_of_the_former_policy_may_be_lost_after_a_change_to_fsync(
    files: SimFiles, change: Change
) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await change(broker, "replicated")
    assert acked_unsynced(broker)
    await change(broker, "fsync")
    await machine.lose_power()
    assert await machine.may_lack_records()


@changes
async def test_records_of_the_former_policy_are_synced_after_a_change_to_fsync(files: SimFiles, change: Change) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await change(broker, "replicated")
    assert acked_unsynced(broker)
    await change(broker, "fsync")
    machine.commit(broker)
    for _ in range(2):
        await broker._housekeeper._checkpoint()
    await machine.lose_power()
    assert not await machine.may_lack_records()


@changes
async def test_change_to_replicated_counts_at_once(files: SimFiles, change: Change) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await change(broker, "fsync")
    assert not acked_unsynced(broker)
    machine.commit(broker)
    await change(broker, "replicated")
    assert acked_unsynced(broker)
    await machine.lose_power()
    assert await machine.may_lack_records()


@changes
@pytest.mark.parametrize(("before", "after"), [("replicated", "fsync"), ("fsync", "replicated")])
async def test_change_while_the_broker_is_down_is_judged_by_the_policy_before(
    files: SimFiles, change: Change, before: str, after: str
) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await change(broker, before)
    acked_unsynced(broker)
    await machine.lose_power()
    await change(await machine.another_broker(), after)
    assert await machine.may_lack_records() == (before == "replicated")


@pytest.mark.parametrize(("before", "after"), [("replicated", "fsync"), ("fsync", "replicated")])
async def test_change_in_the_configuration_file_is_judged_by_the_policy_before(
    files: SimFiles, before: str, after: str
) -> None:
    machine = TwoReplicas(files)
    machine.policy = before
    broker = await machine.created()
    acked_unsynced(broker)
    await machine.lose_power()
    machine.policy = after
    assert await machine.may_lack_records() == (before == "replicated")


async def test_policy_is_remembered_over_a_kill_before_the_host_crash(files: SimFiles) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await set_on_topic(broker, "replicated")
    assert acked_unsynced(broker)
    await machine.kill()
    await set_on_topic(await machine.another_broker(), "fsync")
    await machine.lose_power()
    assert await machine.may_lack_records()


async def test_kill_and_restart_sync_what_the_former_policy_left(files: SimFiles) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await set_on_topic(broker, "replicated")
    assert acked_unsynced(broker)
    await set_on_topic(broker, "fsync")
    await machine.kill()
    broker = await machine.started()
    assert 1 in broker.image.topics["t"].partitions[0].isr
    assert broker.partitions.get("t", 0).log.recovery_point == 1
    for _ in range(2):
        await broker._housekeeper._checkpoint()
    await machine.lose_power()
    assert not await machine.may_lack_records()


async def test_crash_anywhere_in_the_change_misjudges_no_acknowledged_record() -> None:
    at, crashed = 0, True
    while crashed:
        at += 1
        with SimFiles() as disk:
            machine = TwoReplicas(disk)
            broker = await machine.created()
            disk.lose_power_before(at)
            acked = crashed = False
            try:
                await set_on_topic(broker, "replicated")
                acked = acked_unsynced(broker)
                await set_on_topic(broker, "fsync")
                disk.heal()
            except PowerLost:
                crashed = True
            disk.heal()
            await machine.lose_power()
            assert await machine.may_lack_records() or not acked, f"crash before operation {at}"
    assert at > 3


async def test_policy_that_cannot_be_recorded_does_not_count(files: SimFiles, caplog: pytest.LogCaptureFixture) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    files.fail("sync", path=f"{UNSYNCED}*")
    await set_on_topic(broker, "replicated")
    assert "not recorded" in caplog.text
    assert not acked_unsynced(broker)
    files.heal()
    await set_on_topic(broker, "fsync")
    await set_on_topic(broker, "replicated")
    assert acked_unsynced(broker)


@pytest.mark.parametrize("byte", range(0, 40, 3))
async def test_corrupt_record_of_policies_counts_every_topic_as_unsynced(files: SimFiles, byte: int) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await set_on_topic(broker, "replicated")
    acked_unsynced(broker)
    await set_on_topic(broker, "fsync")
    await machine.lose_power()
    files.flip_bit(UNSYNCED, byte=byte, bit=1)
    assert await machine.may_lack_records()
    broker = machine.new_broker()
    assert not broker.log_dir.unsynced_topics.was_corrupt, "written again by the start"


@pytest.mark.parametrize("policy", ["fsync", "replicated"])
async def test_directory_of_an_earlier_version_is_judged_by_the_policy_of_now(files: SimFiles, policy: str) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await set_on_topic(broker, policy)
    acked_unsynced(broker)
    await machine.lose_power()
    files.remove(UNSYNCED)
    assert await machine.may_lack_records() == (policy == "replicated")


async def test_failed_sync_after_a_change_to_fsync_truncates_no_acknowledged_record(files: SimFiles) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await set_on_topic(broker, "replicated")
    assert acked_unsynced(broker)
    partition = broker.partitions.get("t", 0)
    files.fail("sync", path="/data/t-0/*.log")
    await set_on_topic(broker, "fsync")
    machine.commit(broker)
    assert partition.failure is not None
    assert partition.log_end_offset == 1


async def test_deleted_topic_leaves_the_record_of_policies(files: SimFiles) -> None:
    machine = TwoReplicas(files)
    broker = await machine.created()
    await set_on_topic(broker, "replicated")
    topic_id = topic_id_of(broker)
    assert topic_id in broker.log_dir.unsynced_topics
    await broker.controller.delete_topics(["t"])
    for _ in range(2):
        await broker._housekeeper._checkpoint()
    assert machine.new_broker().log_dir.acked_unsynced_before(topic_id) is False
