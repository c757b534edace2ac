"""The controller: decide, commit, apply, tell, answer; and what happens when something comes between."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from headrace.broker.controller.controller import Controller
from headrace.config.settings import Listener, Settings
from headrace.core.controller.config_control import Alteration, Operation
from headrace.core.controller.topic_control import TOMBSTONES_MAX, CreatedTopic, DeletedTopic, NewPartitions, NewTopic
from headrace.core.image import records
from headrace.core.image.deltas import (
    ConfigsChanged,
    MetadataDelta,
    PartitionsAdded,
    PartitionsChanged,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.image.model import ConfigResource, ResourceType
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.sqlite.store import SqliteStore
from headrace.metadata.store import Conflict, LeaseId, OutcomeUnknown, Store
from headrace.model.errors import (
    DiskFull,
    ErrorCode,
    HeadraceError,
    InvalidConfig,
    StorageError,
    TopicExists,
    UnknownTopic,
)
from headrace.testing.simulation.clock import SimClock

ENDPOINT = Listener("PLAINTEXT", "127.0.0.1", 9092)
TOPIC = ConfigResource(ResourceType.TOPIC, "t")
BROKER = ConfigResource(ResourceType.BROKER, "1")
LOGGERS = ConfigResource(ResourceType.BROKER_LOGGER, "1")


class Ids:
    """Ids by number, as good as random ones and the same in every run."""

    def __init__(self) -> None:
        self._chance = random.Random(7)

    def __call__(self) -> UUID:
        return UUID(int=self._chance.getrandbits(128))


class Followed:
    """A listener that notes what it is told."""

    def __init__(self, controller: Controller) -> None:
        self.events: list[MetadataDelta] = []
        controller.on_change(self.note)

    async def note(self, event: MetadataDelta) -> None:
        await asyncio.sleep(0)
        self.events.append(event)


class Troubled:
    """A store that fails commits on demand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.load, self.watch, self.close = store.load, store.watch, store.close
        self.grant, self.keep_alive, self.revoke = store.grant, store.keep_alive, store.revoke
        self.troubles: list[HeadraceError | None] = []
        self.loses_answers = False  # a commit in trouble happens all the same
        self.commits = 0

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble is not None:
            if self.loses_answers:
                await self._store.commit(expect, writes, lease)
            raise trouble
        self.commits += 1
        return await self._store.commit(expect, writes, lease)


def make(store: Store, clock: SimClock | None = None, **fields: object) -> Controller:
    return Controller(store, Settings(**fields), clock or SimClock(), Ids())


@pytest.fixture
async def store() -> AsyncIterator[Troubled]:
    store = Troubled(MemoryStore(SimClock()))
    yield store
    await store.close()


@pytest.fixture
async def controller(store: Troubled) -> AsyncIterator[Controller]:
    controller = make(store)
    await controller.start([ENDPOINT])
    yield controller
    await controller.stop()


async def create(controller: Controller, *names: str, partitions: int = 1) -> None:
    rows = await controller.create_topics([NewTopic(name=name, partitions=partitions) for name in names])
    assert all(isinstance(row, CreatedTopic) for row in rows.values()), rows


def errors(rows: Mapping[object, object]) -> dict[object, ErrorCode]:
    return {key: row.code for key, row in rows.items() if isinstance(row, HeadraceError)}


def kinds(events: Iterable[MetadataDelta]) -> list[type]:
    return [type(event) for event in events]


async def test_start_registers_the_broker_and_names_the_cluster(controller: Controller) -> None:
    image = controller.image
    assert image.brokers[1].endpoints == (ENDPOINT,)
    assert image.controller == 1
    assert len(image.cluster_id) == 22


async def test_a_configured_cluster_id_is_used_and_another_one_refused(store: Troubled) -> None:
    first = make(store, cluster_id="mine")
    await first.start([ENDPOINT])
    assert first.image.cluster_id == "mine"
    with pytest.raises(InvalidConfig):
        await make(store, cluster_id="yours").start([ENDPOINT])


async def test_a_topic_exists_and_everyone_knows_before_the_answer(controller: Controller) -> None:
    followed = Followed(controller)
    rows = await controller.create_topics([NewTopic(name="t", partitions=3)])
    topic = controller.image.topics["t"]
    assert followed.events == [TopicCreated(topic)]
    row = rows["t"]
    assert isinstance(row, CreatedTopic)
    assert (row.topic_id, row.partitions, row.replication_factor) == (topic.topic_id, 3, 1)
    assert topic.partitions[0].replicas == (1,)


async def test_topics_whose_creator_says_nothing_get_the_nodes_defaults(store: Troubled) -> None:
    controller = make(store, broker_configs={"num.partitions": "6"})
    await controller.start([ENDPOINT])
    row = (await controller.create_topics([NewTopic(name="t")]))["t"]
    assert isinstance(row, CreatedTopic)
    assert (row.partitions, row.replication_factor) == (6, 1)


async def test_each_topic_of_a_request_has_its_own_answer_in_order(controller: Controller) -> None:
    await create(controller, "old")
    wanted = [NewTopic(name=name, partitions=1) for name in ("new", "old", "b@d", "twice", "twice", "new2")]
    rows = await controller.create_topics(wanted)
    assert list(rows) == ["new", "old", "b@d", "twice", "new2"]
    assert errors(rows) == {
        "old": ErrorCode.TOPIC_ALREADY_EXISTS,
        "b@d": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert set(controller.image.topics) == {"old", "new", "new2"}


async def test_validating_only_answers_the_same_and_changes_nothing(controller: Controller, store: Troubled) -> None:
    await create(controller, "t")
    followed = Followed(controller)
    commits = store.commits
    created = await controller.create_topics([NewTopic(name="u"), NewTopic(name="t")], validate_only=True)
    assert isinstance(created["u"], CreatedTopic)
    assert isinstance(created["t"], TopicExists)
    assert await controller.create_partitions([NewPartitions("t", 5)], validate_only=True) == {"t": 5}
    change = [(TOPIC, [Alteration("retention.ms", Operation.SET, "1")])]
    assert await controller.alter_configs(change, validate_only=True) == {TOPIC: None}
    assert await controller.legacy_alter_configs([(TOPIC, {"retention.ms": "1"})], validate_only=True) == {TOPIC: None}
    levels = [(LOGGERS, [Alteration("headrace", Operation.SET, "TRACE")])]
    before = controller.log_levels()
    assert await controller.alter_configs(levels, validate_only=True) == {LOGGERS: None}
    assert controller.log_levels() == before
    assert (store.commits, followed.events) == (commits, [])
    assert set(controller.image.topics) == {"t"}


async def test_many_topics_take_few_commits(controller: Controller, store: Troubled) -> None:
    before = store.commits
    await create(controller, *(f"t{number}" for number in range(100)))
    assert store.commits - before == 3, "three keys for each topic: its own, its partitions' and its tombstone's"
    assert len(controller.image.topics) == 100


async def test_partitions_are_added_and_told(controller: Controller) -> None:
    await create(controller, "t", partitions=2)
    followed = Followed(controller)
    rows = await controller.create_partitions([NewPartitions("t", 5), NewPartitions("u", 5)])
    assert rows["t"] == 5
    assert isinstance(rows["u"], UnknownTopic)
    assert followed.events == [PartitionsAdded(controller.image.topics["t"], 2)]


async def test_a_deleted_topic_is_told_and_remembered(controller: Controller) -> None:
    await create(controller, "t", "u")
    topic, other = controller.image.topics["t"], controller.image.topics["u"]
    followed = Followed(controller)
    rows = await controller.delete_topics(["t", other.topic_id, "missing"])
    assert rows["t"] == DeletedTopic("t", topic.topic_id)
    assert rows[other.topic_id] == DeletedTopic("u", other.topic_id)
    assert isinstance(rows["missing"], UnknownTopic)
    assert followed.events == [TopicDeleted(topic), TopicDeleted(other)]
    assert controller.deleted_topic_ids() == {topic.topic_id, other.topic_id}
    assert not controller.image.topic_ids


async def test_rule_19_a_topic_created_again_is_another_topic(controller: Controller) -> None:
    await create(controller, "t")
    old = controller.image.topics["t"]
    await controller.delete_topics(["t"])
    await create(controller, "t")
    new = controller.image.topics["t"]
    assert new.topic_id != old.topic_id
    assert new.partitions[0].leader_epoch > old.partitions[0].leader_epoch


async def test_deleting_is_refused_where_it_is_switched_off(store: Troubled) -> None:
    controller = make(store, broker_configs={"delete.topic.enable": "false"})
    await controller.start([ENDPOINT])
    await create(controller, "t")
    assert errors(await controller.delete_topics(["t"])) == {"t": ErrorCode.TOPIC_DELETION_DISABLED}


async def test_tombstones_are_bounded(controller: Controller) -> None:
    for start in range(0, TOMBSTONES_MAX + 250, 250):
        names = [f"t{number}" for number in range(start, start + 250)]
        await create(controller, *names)
        await controller.delete_topics(names)
    assert len(controller.image.tombstones) == TOMBSTONES_MAX
    assert "t0" not in controller.image.tombstones
    assert controller.image.leader_epoch_floor == 1


async def test_configs_change_for_topics_brokers_and_loggers_in_one_request(controller: Controller) -> None:
    await create(controller, "t")
    followed = Followed(controller)
    quiet = logging.getLogger("headrace.quiet")
    rows = await controller.alter_configs(
        [
            (TOPIC, [Alteration("retention.ms", Operation.SET, "1")]),
            (BROKER, [Alteration("log.retention.ms", Operation.SET, "2")]),
            (LOGGERS, [Alteration("headrace.quiet", Operation.SET, "ERROR")]),
            (ConfigResource(ResourceType.TOPIC, "u"), []),
        ]
    )
    assert errors(rows) == {ConfigResource(ResourceType.TOPIC, "u"): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert followed.events == [ConfigsChanged(TOPIC), ConfigsChanged(BROKER)]
    assert controller.image.topics["t"].configs["retention.ms"] == "1"
    assert controller.broker_configs()["log.retention.ms"] == "2"
    assert quiet.level == logging.ERROR
    assert controller.log_levels()["headrace.quiet"] == "ERROR"
    await controller.alter_configs([(LOGGERS, [Alteration("headrace.quiet", Operation.DELETE, None)])])
    assert quiet.level == logging.NOTSET


@pytest.mark.parametrize("resource", [TOPIC, LOGGERS])
async def test_a_resource_named_twice_is_not_touched(controller: Controller, resource: ConfigResource) -> None:
    await create(controller, "t")
    name, value = ("retention.ms", "1") if resource is TOPIC else ("headrace.twice", "DEBUG")
    logger = logging.getLogger("headrace.twice")
    change = (resource, [Alteration(name, Operation.SET, value)])
    assert errors(await controller.alter_configs([change, change])) == {resource: ErrorCode.INVALID_REQUEST}
    assert not controller.image.topics["t"].configs
    assert logger.level == logging.NOTSET


async def test_replacing_configs_forgets_the_others(controller: Controller) -> None:
    await controller.create_topics([NewTopic(name="t", configs={"flush.ms": "5"})])
    await controller.legacy_alter_configs([(TOPIC, {"retention.ms": "1"})])
    assert dict(controller.image.topics["t"].configs) == {"retention.ms": "1"}


async def test_the_brokers_own_configs_win_over_the_clusters_and_both_over_the_settings(store: Troubled) -> None:
    controller = make(store, broker_configs={"log.retention.ms": "1", "log.segment.bytes": "2000000"})
    await controller.start([ENDPOINT])
    everyone = ConfigResource(ResourceType.BROKER, "")
    await controller.alter_configs([(everyone, [Alteration("log.retention.ms", Operation.SET, "2")])])
    assert controller.broker_configs()["log.retention.ms"] == "2"
    await controller.alter_configs([(BROKER, [Alteration("log.retention.ms", Operation.SET, "3")])])
    assert controller.broker_configs()["log.retention.ms"] == "3"
    assert controller.broker_configs()["log.segment.bytes"] == "2000000"


async def test_producer_ids_are_never_given_twice(store: Troubled) -> None:
    first, second = make(store), make(store, node_id=2)
    await first.start([ENDPOINT])
    await second.start([ENDPOINT])
    blocks = await asyncio.gather(*(one.allocate_producer_ids() for one in (first, second) for _ in range(5)))
    ids = [number for block in blocks for number in range(block.first, block.first + block.count)]
    assert len(ids) == len(set(ids)) == 10_000


async def test_d11_two_controllers_on_one_store_never_undo_each_other(store: Troubled) -> None:
    first, second = make(store), make(store, node_id=2)
    await first.start([ENDPOINT])
    await second.start([ENDPOINT])
    followed = Followed(second)
    await create(first, "t")
    rows = await second.create_topics([NewTopic(name="t"), NewTopic(name="u")])
    assert errors(rows) == {"t": ErrorCode.TOPIC_ALREADY_EXISTS}
    assert "u" in second.image.topics
    assert second.image.topics["t"] == first.image.topics["t"]
    assert kinds(followed.events) == [TopicCreated, TopicCreated]
    await second.delete_topics(["t"])
    assert errors(await first.create_partitions([NewPartitions("t", 9)])) == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_facts_that_others_wrote_in_between_are_not_skipped(store: Troubled) -> None:
    first, second = make(store), make(store, node_id=2)
    await first.start([ENDPOINT])
    await second.start([ENDPOINT])
    await create(first, "a")
    await create(second, "b")
    assert set(second.image.topics) == {"a", "b"}


async def test_a_store_that_always_conflicts_is_given_up(controller: Controller, store: Troubled) -> None:
    store.troubles = [Conflict("/x")] * 100
    assert errors(await controller.create_topics([NewTopic(name="t")])) == {"t": ErrorCode.NOT_CONTROLLER}
    assert not controller.image.topics
    with pytest.raises(Conflict):
        await controller.allocate_producer_ids()


@pytest.mark.parametrize("happened", [True, False])
async def test_ids_whose_commit_got_no_answer_are_given_to_nobody_twice(
    controller: Controller, store: Troubled, happened: bool
) -> None:
    first = await controller.allocate_producer_ids()
    store.troubles = [OutcomeUnknown("no answer")]
    store.loses_answers = happened
    second = await controller.allocate_producer_ids()
    assert second.first == first.first + first.count * (2 if happened else 1)


async def test_a_topic_whose_commit_got_no_answer_is_answered_so(controller: Controller, store: Troubled) -> None:
    store.troubles = [OutcomeUnknown("no answer")]
    assert errors(await controller.create_topics([NewTopic(name="t")])) == {"t": ErrorCode.REQUEST_TIMED_OUT}
    await create(controller, "t")


async def test_what_was_committed_before_the_disk_filled_up_is_answered_as_done(
    controller: Controller, store: Troubled
) -> None:
    store.troubles = [None, DiskFull("no room")]
    rows = await controller.create_topics([NewTopic(name=f"t{number}", partitions=1) for number in range(100)])
    done = {name for name, row in rows.items() if isinstance(row, CreatedTopic)}
    assert done == set(controller.image.topics)
    assert 0 < len(done) < 100
    assert {type(row) for row in rows.values()} == {CreatedTopic, DiskFull}
    await create(controller, "heals")


async def test_a_change_is_finished_even_if_its_caller_goes_away(controller: Controller) -> None:
    followed = Followed(controller)
    asking = asyncio.create_task(controller.create_topics([NewTopic(name="t")]))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await controller.stop()
    assert kinds(followed.events) == [TopicCreated]
    assert "t" in controller.image.topics


async def test_a_listener_in_trouble_is_reported_and_the_others_are_still_told(controller: Controller) -> None:
    async def fail(event: MetadataDelta) -> None:
        raise StorageError("cannot make the folder")

    controller.on_change(fail)
    followed = Followed(controller)
    rows = await controller.create_topics([NewTopic(name="t"), NewTopic(name="u")])
    assert errors(rows) == dict.fromkeys(["t", "u"], ErrorCode.KAFKA_STORAGE_ERROR)
    assert kinds(followed.events) == [TopicCreated, TopicCreated]
    assert set(controller.image.topics) == {"t", "u"}, "the facts are committed all the same"


async def test_changes_from_many_callers_are_told_in_the_order_they_were_committed(controller: Controller) -> None:
    followed = Followed(controller)
    await asyncio.gather(*(create(controller, f"t{number}") for number in range(20)))
    told = [event.topic.name for event in followed.events if isinstance(event, TopicCreated)]
    versions = [controller.image.version_of(records.topic_key(name)) for name in told]
    assert len(told) == 20
    assert versions == sorted(versions)


async def test_racing_creators_of_one_topic_make_one_topic(controller: Controller) -> None:
    rows = await asyncio.gather(*(controller.create_topics([NewTopic(name="t")]) for _ in range(10)))
    assert sum(isinstance(row["t"], CreatedTopic) for row in rows) == 1
    assert sum(isinstance(row["t"], TopicExists) for row in rows) == 9


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    first_store = await SqliteStore.open(path, SimClock())
    first = make(first_store)
    await first.start([ENDPOINT])
    await create(first, "t", "gone", partitions=120)
    await first.alter_configs([(TOPIC, [Alteration("retention.ms", Operation.SET, "1")])])
    gone = first.image.topics["gone"].topic_id
    await first.delete_topics(["gone"])
    await first.allocate_producer_ids()
    await first_store.close()

    second_store = await SqliteStore.open(path, SimClock())
    second = make(second_store)
    await second.start([Listener("PLAINTEXT", "127.0.0.1", 9093)])
    assert second.image.topics == first.image.topics
    assert second.image.cluster_id == first.image.cluster_id
    assert second.image.brokers[1].endpoints[0].port == 9093
    assert second.image.brokers[1].epoch > first.image.brokers[1].epoch
    assert second.deleted_topic_ids() == {gone}
    assert (await second.allocate_producer_ids()).first == 1000
    assert isinstance((await second.create_topics([NewTopic(name="t")]))["t"], TopicExists)
    await second_store.close()


async def test_after_a_crash_every_partition_that_we_lead_has_a_new_leader_epoch(store: Troubled) -> None:
    first = make(store)
    await first.start([ENDPOINT])
    await create(first, *(f"t{number}" for number in range(200)), partitions=3)
    clean = make(store)
    await clean.start([ENDPOINT])
    assert {state.leader_epoch for topic in clean.image.topics.values() for state in topic.partitions} == {0}
    crashed = make(store)
    followed = Followed(crashed)
    await crashed.start([ENDPOINT], unclean=True)
    assert {state.leader_epoch for topic in crashed.image.topics.values() for state in topic.partitions} == {1}
    assert kinds(followed.events).count(PartitionsChanged) == 200


async def test_tombstones_are_pruned_oldest_first_after_a_restart_too(store: Troubled) -> None:
    controller = make(store)
    await controller.start([ENDPOINT])
    for name in ("z", "m", "a"):
        await create(controller, name)
        await controller.delete_topics([name])
    restarted = make(store)
    await restarted.start([ENDPOINT])
    assert list(restarted.image.tombstones) == ["z", "m", "a"]


async def test_ids_never_look_like_a_flag_on_a_command_line(store: Troubled) -> None:
    given = iter([UUID(int=62 << 122), UUID(int=1), UUID(int=62 << 122), UUID(int=2)])
    controller = Controller(store, Settings(), SimClock(), lambda: next(given))
    await controller.start([ENDPOINT])
    assert not controller.image.cluster_id.startswith("-")
    await create(controller, "t")
    assert controller.image.topics["t"].topic_id == UUID(int=2)
