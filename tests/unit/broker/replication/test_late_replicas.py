"""A replica that comes back on restored metadata after others have served: no history is truncated by itself."""

from collections.abc import AsyncIterator

import pytest

from headrace.broker.replication.replica_health import LateReplicas
from headrace.broker.server import Broker
from headrace.core.controller.leader_election import BrokerLiveness, ElectionConfig
from headrace.core.controller.restored_metadata import is_late, raised
from headrace.core.image import records
from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.storage.directory.stray_directories import find_strays
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import produce
from tests.unit.broker.start_kit import LISTENER, PARTITIONS, Machine, stop_cleanly

ONE = ElectionConfig(min_isr=1)
LED_BY_2 = PartitionRegistration((1, 2, 3), (2, 3), 2, 3, 9)
LOG_EPOCH = 7


@pytest.mark.parametrize("has_lost", [False, True])
@pytest.mark.parametrize("live", [(1, 2), (1, 2, 3)])
def test_live_leader_that_commits_without_the_replica_stays(live: tuple[int, ...], has_lost: bool) -> None:
    assert is_late(LED_BY_2, 1, BrokerLiveness(live))
    assert raised(LED_BY_2, 1, LOG_EPOCH, BrokerLiveness(live), ONE, has_lost=has_lost) is LED_BY_2


@pytest.mark.parametrize(
    "state",
    [
        LED_BY_2._replace(isr=(1, 2)),  # it commits nothing that an in-sync replica lacks
        LED_BY_2._replace(isr=(2,), elr=(1,)),  # the watermark stands still
        LED_BY_2._replace(leader=1, isr=(1,)),
    ],
)
def test_replica_that_the_metadata_relies_on_takes_over(state: PartitionRegistration) -> None:
    assert not is_late(state, 1, BrokerLiveness((1, 2, 3)))
    new = raised(state, 1, LOG_EPOCH, BrokerLiveness((1, 2, 3)), ONE)
    assert (new.leader, new.isr, new.leader_epoch) == (1, (1,), LOG_EPOCH + 1)


@pytest.mark.parametrize("state", [LED_BY_2, LED_BY_2._replace(leader=NO_LEADER)])
def test_replica_takes_over_where_no_leader_lives(state: PartitionRegistration) -> None:
    new = raised(state, 1, LOG_EPOCH, BrokerLiveness((1, 3)), ONE)
    assert (new.leader, new.isr, new.leader_epoch) == (1, (1,), LOG_EPOCH + 1)


class Cluster:
    """Broker 1 led alone after the snapshot and stopped. The restored metadata names broker 2 as the leader."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    async def returned(self) -> Broker:
        machine = self.machine
        broker = await machine.created()
        await self.commit(broker, PartitionRegistration((1, 2), (1,), 1, LOG_EPOCH, 9))
        await broker.controller.catch_up()
        for partition in broker.partitions.all():
            produce(partition, "newer than the snapshot")
            partition.request_flush()
        machine.commit(broker)
        await stop_cleanly(machine, broker)
        await machine.store.commit({}, {records.broker_key(2): records.encode_broker((LISTENER,), None)})
        await machine.store.commit({}, {records.session_key(2): records.encode_session()})
        await self.commit(broker, PartitionRegistration((1, 2), (2,), 2, 3, 7))
        return await machine.started()

    async def commit(self, broker: Broker, state: PartitionRegistration) -> None:
        topic = broker.image.topics["t"]
        writes = records.block_writes(topic.topic_id, [state] * PARTITIONS, range(PARTITIONS))
        await self.machine.store.commit({}, writes)

    def strays(self) -> list[str]:
        return [one.path for one in find_strays(self.machine.files, "/data", 0)]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with SimFiles() as files:
        machine = Machine(files, is_clustered=True)
        yield Cluster(machine)
        await machine.store.close()


def waiting(broker: Broker, wait_s: float) -> LateReplicas:
    late = LateReplicas(broker)
    late._wait_s = wait_s
    return late


async def test_late_replica_neither_leads_nor_follows_at_first(cluster: Cluster) -> None:
    broker = await cluster.returned()
    late = waiting(broker, 1e9)
    await late.look()
    await late.look()
    for partition in broker.partitions.all():
        assert (partition.leader, partition.leadership, partition.failure) == (NO_LEADER, None, None)
        assert partition.log_end_offset == 1
    assert broker.image.topics["t"].partitions[0].leader == 2
    assert cluster.strays() == []
    await broker.stop()


async def test_late_replica_is_kept_aside_and_copied_from_the_leader(cluster: Cluster) -> None:
    broker = await cluster.returned()
    late = waiting(broker, 0.0)
    await late.look()
    await late.look()
    partitions = list(broker.partitions.all())
    assert len(partitions) == PARTITIONS
    for partition in partitions:
        assert (partition.leader, partition.leader_epoch, partition.log_end_offset) == (2, 3, 0)
        assert partition.failure is None
    strays = find_strays(cluster.machine.files, "/data", 0)
    assert [(one.newest_epoch, one.has_records) for one in strays] == [(LOG_EPOCH, True)] * PARTITIONS
    state = broker.image.topics["t"].partitions[0]
    assert (state.leader, state.leader_epoch, state.isr) == (2, 3, (2,)), "nothing was committed about it"
    await broker.stop()
    again = await cluster.machine.started()
    assert [one.log_end_offset for one in again.partitions.all()] == [0] * PARTITIONS
    assert len(cluster.strays()) == PARTITIONS, "a restart keeps them"
    await again.stop()


async def test_late_replica_takes_over_when_the_leader_ends(cluster: Cluster) -> None:
    """A restored store shows sessions of brokers that are gone."""
    broker = await cluster.returned()
    late = waiting(broker, 0.0)
    await late.look()
    await cluster.machine.store.commit({}, {records.session_key(2): None})
    await broker.controller.catch_up()
    await late.look()
    assert cluster.strays() == []
    assert [one.log_end_offset for one in broker.partitions.all()] == [1] * PARTITIONS
    await broker.stop()
