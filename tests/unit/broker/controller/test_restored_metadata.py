"""Metadata that was restored from an older snapshot: leader epochs are raised above those of the logs."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from headrace.broker.controller.restored_metadata import raise_leader_epochs
from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.config.values import LogConfig
from headrace.core.controller import replication_control, restored_metadata
from headrace.core.controller.config_control import Alteration, Operation
from headrace.core.controller.leader_election import BrokerLiveness, ElectionConfig, succeeded, without
from headrace.core.controller.restored_metadata import raised
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_LEADER, ConfigResource, Decision, PartitionRegistration, ResourceType
from headrace.metadata.embedded import MemoryStore
from headrace.model.errors import NotLeader
from headrace.process.runtime import SystemClock
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import produce
from tests.unit.broker.start_kit import Machine, be_killed, lose_power, stop_cleanly
from tests.unit.storage.log_kit import batch_of

ONE = ElectionConfig(min_isr=1)
RESTORED = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 3, 9)


def test_epoch_above_the_log_changes_nothing() -> None:
    assert raised(RESTORED, 2, 3, BrokerLiveness({1, 2, 3}), ONE) is RESTORED
    assert raised(RESTORED, 1, 2, BrokerLiveness({1, 2, 3}), ONE) is RESTORED
    assert raised(RESTORED, 4, 5, BrokerLiveness({1, 2, 3}), ONE) is RESTORED, "it holds no replica"


def test_partition_that_the_topic_has_no_more_is_skipped() -> None:
    """The topic was deleted and created again with fewer partitions since the epochs were collected."""
    image, topic_id = MetadataImage(), UUID(int=5)
    blocks = records.block_writes(topic_id, [PartitionRegistration((1,), (1,), 1, 0, 0)], [0])
    image.apply(1, {records.topic_key("t"): records.encode_topic(topic_id, {}), **blocks})
    wanted = {"t": {0: 4, 3: 5}}
    raised_epochs = restored_metadata.raise_leader_epochs(
        wanted, image, 1, BrokerLiveness({1}), lambda _: ONE, lambda _: False
    )["t"]
    led = replication_control.lead_above(wanted, image, 1)["t"]
    for decision in (raised_epochs, led):
        assert isinstance(decision, Decision)
        assert decision.row == 1


def test_replica_with_newer_log_leads_in_a_higher_epoch() -> None:
    new = raised(RESTORED, 2, 5, BrokerLiveness({1, 2, 3}), ONE)
    assert (new.leader, new.isr, new.elr, new.leader_epoch, new.partition_epoch) == (2, (2,), (), 6, 10)


def test_replica_without_session_stays_eligible_alone() -> None:
    new = raised(RESTORED, 2, 5, BrokerLiveness({1}), ONE)
    assert (new.leader, new.isr, new.elr, new.leader_epoch) == (NO_LEADER, (), (2,), 6)
    assert succeeded(new, BrokerLiveness({1, 3}), ONE) == new, "they may lack what was committed since the snapshot"
    assert succeeded(new, BrokerLiveness({1, 2, 3}), ONE).leader == 2
    assert raised(new, 3, 5, BrokerLiveness({3}), ONE) is new, "a second replica of the same epoch follows"


def test_leader_of_an_epoch_that_its_log_knows_gets_a_higher_one() -> None:
    new = raised(RESTORED, 1, 3, BrokerLiveness({1, 2, 3}), ONE)
    assert (new.leader, new.isr, new.leader_epoch) == (1, (1,), 4)


ALL = BrokerLiveness({1, 2, 3})


def handle_unclean_restart(state: PartitionRegistration, broker: int) -> PartitionRegistration:
    """The first start after a power failure that took unsynced records, before metadata is compared with the logs."""
    return without(state, broker, BrokerLiveness(()), ONE)


def test_replica_that_may_have_lost_records_waits_for_another() -> None:
    reported = raised(handle_unclean_restart(RESTORED, 1), 1, 6, ALL, ONE, has_lost=True)
    assert (reported.leader, reported.isr, reported.elr, reported.leader_epoch) == (NO_LEADER, (), (), 6)
    assert succeeded(reported, ALL, ONE) == reported, "no replica is elected by itself"
    assert raised(reported, 1, 6, ALL, ONE, has_lost=True) is reported
    assert raised(reported, 1, 6, ALL, ONE) is reported, "a second restart lost nothing more"
    assert raised(reported, 2, 5, ALL, ONE) is reported, "its log lacks the newest epoch"
    claimed = raised(reported, 3, 6, ALL, ONE)
    assert (claimed.leader, claimed.isr, claimed.leader_epoch) == (3, (3,), 7)
    assert claimed.partition_epoch == reported.partition_epoch + 1


def test_all_replicas_that_may_have_lost_records_wait_for_an_operator() -> None:
    state = handle_unclean_restart(RESTORED, 1)
    for broker, epoch in ((1, 6), (3, 6), (2, 5)):
        state = raised(state, broker, epoch, ALL, ONE, has_lost=True)
    assert (state.leader, state.leader_epoch, state.lost) == (NO_LEADER, 6, (1, 3))
    for broker, epoch in ((1, 6), (3, 6), (2, 5)):
        assert raised(state, broker, epoch, ALL, ONE) is state
    led = succeeded(state, BrokerLiveness({1, 3}), ElectionConfig(min_isr=1, unclean=True))
    assert (led.leader, led.leader_epoch) == (1, 7)


def test_newest_epoch_of_replicas_that_lost_records_counts() -> None:
    state = raised(handle_unclean_restart(RESTORED, 1), 1, 5, ALL, ONE, has_lost=True)
    state = raised(state, 2, 6, ALL, ONE, has_lost=True)
    assert (state.leader_epoch, state.lost) == (6, (2,))
    assert raised(state, 1, 5, ALL, ONE) is state
    assert raised(state, 3, 7, ALL, ONE).leader_epoch == 8


def test_only_replica_leads_whatever_it_has_lost() -> None:
    state = PartitionRegistration((2,), (2,), 2, 3, 9)
    new = raised(without(state, 2, BrokerLiveness({2}), ONE), 2, 6, BrokerLiveness({2}), ONE, has_lost=True)
    assert (new.leader, new.leader_epoch) == (2, 7)


def test_partition_that_lost_its_leader_before_the_snapshot_is_not_claimed() -> None:
    gone = succeeded(PartitionRegistration((1, 2), (1,), 1, 3, 9), BrokerLiveness({2}), ONE)
    assert gone.leader == NO_LEADER
    assert raised(gone, 2, 3, BrokerLiveness({2}), ONE) is gone, "only the last leader is known to have all records"


@pytest.mark.parametrize(
    ("end", "policy", "restored_policy", "is_eligible"),
    [
        (lose_power, "replicated", "replicated", False),
        (lose_power, "replicated", "fsync", False),
        (lose_power, "fsync", "replicated", True),
        (be_killed, "replicated", "replicated", True),
        (stop_cleanly, "replicated", "replicated", True),
    ],
)
async def test_started_replica_is_eligible_unless_it_may_have_lost_records(
    end: Callable[[Machine, Broker], Awaitable[None]], policy: str, restored_policy: str, is_eligible: bool
) -> None:
    machine = Machine(SimFiles(), is_clustered=True)
    broker = await machine.created()
    topic = broker.image.topics["t"]
    await broker.controller.alter_configs(
        [(ConfigResource(ResourceType.TOPIC, "t"), [Alteration("flush.policy", Operation.SET, policy)])]
    )

    async def commit(state: PartitionRegistration) -> None:
        states = [state] * len(topic.partitions)
        await machine.store.commit({}, records.block_writes(topic.topic_id, states, range(len(states))))

    await commit(PartitionRegistration((1, 2), (1,), 1, 5, 9))
    await broker.controller.catch_up()
    for partition in broker.partitions.all():
        produce(partition, "x")
    for partition in broker.partitions.all():
        partition.request_flush()
    machine.commit(broker)
    await end(machine, broker)
    await commit(PartitionRegistration((1, 2), (1, 2), NO_LEADER, 3, 7))
    configs = {**topic.configs, "flush.policy": restored_policy}
    await machine.store.commit({}, {records.topic_key("t"): records.encode_topic(topic.topic_id, configs)})
    broker = await machine.started()
    for state in broker.image.topics["t"].partitions:
        assert state.is_electable(1) is is_eligible
        assert state.leader_epoch >= (6 if is_eligible else 5)
        assert state.lost == (() if is_eligible else (1,))
    await broker.stop()


def elected(replicas: tuple[int, ...], leader: int, epoch: int) -> PartitionRegistration:
    return PartitionRegistration(replicas, replicas, leader, epoch, 0)


@pytest.mark.parametrize(
    ("replicas", "leader", "epoch", "was_clean", "leads"),
    [
        ((1, 2), 1, 5, False, False),  # an election after the restore took an epoch of another leader
        ((1, 2), 1, 5, True, True),  # it led in this epoch before it stopped
        ((1, 2), 1, 6, False, True),
        ((1,), 1, 5, False, True),  # no other replica has records of the epoch
    ],
)
def test_replica_leads_only_in_an_epoch_of_its_own(
    replicas: tuple[int, ...], leader: int, epoch: int, was_clean: bool, leads: bool
) -> None:
    log = Log.create(MemoryFiles(), "/data/t-0", LogConfig(), now_ms=0)
    log.begin_epoch(5, 0)
    partition = Partition(
        "t",
        0,
        UUID(int=1),
        log,
        elected(replicas, leader, epoch),
        node_id=1,
        group_commit=None,
        let_go=lambda partition, segments, at_once: None,
        was_clean=was_clean,
    )
    assert (partition.leadership is not None) is leads
    assert partition.is_behind_its_log is not leads
    if not leads:
        partition.follow(elected(replicas, leader, epoch))
        assert partition.leadership is None, "the same state again changes nothing"
        partition.follow(elected(replicas, leader, epoch + 1))
        assert partition.leadership is not None
        assert not partition.is_behind_its_log


@pytest.mark.parametrize("shares_store", [False, True])
async def test_log_newer_than_metadata_is_led_in_a_new_epoch(shares_store: bool) -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    settings = Settings(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),), data_dir="/data", storage="memory")
    broker = Broker(settings, clock, MemoryFiles(), store, shares_store=shares_store)
    await broker.start()
    try:
        await broker.controller.create_topics([NewTopic("t", 1, 1)])
        topic = broker.image.topics["t"]
        (old,) = topic.partitions
        (partition,) = broker.partitions.of_topic(topic)

        async def restore(epoch: int) -> None:
            (key,) = records.block_keys(topic.topic_id, 1)
            state = old._replace(leader_epoch=epoch, partition_epoch=epoch)
            await store.commit({}, records.block_writes(topic.topic_id, [state], [0]))
            await broker.controller.catch_up()
            assert broker.image.version_of(key) > 0

        await restore(5)
        partition.append(memoryview(bytearray(batch_of(["x"]))), -1, clock.wall_ms())
        await restore(2)
        with pytest.raises(NotLeader):
            partition.append(memoryview(bytearray(batch_of(["x"]))), -1, clock.wall_ms())
        await raise_leader_epochs(broker)
        assert broker.image.topics["t"].partitions[0].leader_epoch == 6
        assert partition.append(memoryview(bytearray(batch_of(["x"]))), -1, clock.wall_ms()).base_offset == 1
        assert partition.log.epochs.entries() == [(5, 0), (6, 1)]
    finally:
        await broker.stop()
