"""The image: what is applied is what is seen, live and after a reload alike."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.settings import Listener
from headrace.core.controller.replica_placer import new_partitions
from headrace.core.image import records
from headrace.core.image.deltas import (
    BrokerRegistered,
    BrokerUnregistered,
    ConfigsChanged,
    PartitionsAdded,
    PartitionsChanged,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_CONTROLLER, ConfigResource, PartitionRegistration, ResourceType, Tombstone

Writes = dict[str, bytes | None]


def topic_writes(name: str, topic_id: int, partitions: int, configs: dict[str, str] | None = None) -> Writes:
    states = new_partitions([(1,)] * partitions, 0)
    return {
        records.topic_key(name): records.encode_topic(UUID(int=topic_id), configs or {}),
        **records.block_writes(UUID(int=topic_id), states, range(partitions)),
    }


def removal(name: str, topic_id: int, partitions: int) -> Writes:
    keys = [records.topic_key(name), *records.block_keys(UUID(int=topic_id), partitions)]
    return dict.fromkeys(keys)


def test_a_new_topic_is_told_once_with_all_its_partitions() -> None:
    image = MetadataImage()
    events = image.apply(1, topic_writes("t", 1, 250))
    assert events == [TopicCreated(image.topics["t"])]
    assert len(image.topics["t"].partitions) == 250
    assert image.revision == 1


def test_a_deleted_topic_is_told_as_it_last_was() -> None:
    image = MetadataImage()
    image.apply(1, topic_writes("t", 1, 3))
    topic = image.topics["t"]
    assert image.apply(2, removal("t", 1, 3)) == [TopicDeleted(topic)]
    assert not image.topics
    assert not image.topic_ids
    assert not image.fact_keys()


def test_a_topic_that_was_replaced_is_told_as_deleted_and_created() -> None:
    image = MetadataImage()
    image.apply(1, topic_writes("t", 1, 3))
    old = image.topics["t"]
    events = image.apply(2, removal("t", 1, 3) | topic_writes("t", 2, 5))
    assert events == [TopicDeleted(old), TopicCreated(image.topics["t"])]
    assert image.topic_ids == {UUID(int=2): "t"}


def test_added_and_changed_partitions_are_told_apart() -> None:
    image = MetadataImage()
    image.apply(1, topic_writes("t", 1, 2))
    moved = PartitionRegistration((1,), (1,), 1, 7, 1)
    states = (image.topics["t"].partitions[0], moved, *new_partitions([(1,)], 0))
    events = image.apply(2, dict(records.block_writes(UUID(int=1), states, [1, 2])))
    topic = image.topics["t"]
    assert events == [PartitionsChanged(topic, (1,)), PartitionsAdded(topic, 2)]
    assert topic.partitions == states


def test_changed_configs_are_told_and_unchanged_ones_are_not() -> None:
    image = MetadataImage()
    image.apply(1, topic_writes("t", 1, 1))
    key = records.topic_key("t")
    changed = records.encode_topic(UUID(int=1), {"retention.ms": "1"})
    assert image.apply(2, {key: changed}) == [ConfigsChanged(ConfigResource(ResourceType.TOPIC, "t"))]
    assert image.apply(3, {key: changed}) == []
    assert image.version_of(key) == 3
    assert len(image.topics["t"].partitions) == 1


def test_broker_configs_and_registrations_are_told() -> None:
    image = MetadataImage()
    default_key, own_key = records.broker_configs_key(""), records.broker_configs_key("1")
    configs = records.encode_configs({"log.retention.ms": "1"})
    events = image.apply(1, {default_key: configs, own_key: configs})
    assert events == [ConfigsChanged(ConfigResource(ResourceType.BROKER, name)) for name in ("", "1")]
    assert set(image.broker_configs) == {"", "1"}
    assert image.apply(2, {own_key: None}) == [ConfigsChanged(ConfigResource(ResourceType.BROKER, "1"))]
    assert set(image.broker_configs) == {""}

    endpoint = Listener("PLAINTEXT", "::1", 9092)
    (registered,) = image.apply(3, {records.broker_key(1): records.encode_broker([endpoint], "rack")})
    assert isinstance(registered, BrokerRegistered)
    assert registered.broker == image.brokers[1]
    assert (registered.broker.epoch, registered.broker.endpoints, registered.broker.rack) == (3, (endpoint,), "rack")
    assert image.apply(4, {records.broker_key(1): None}) == [BrokerUnregistered(registered.broker)]


def test_single_facts_are_kept_and_forgotten() -> None:
    image = MetadataImage()
    writes: Writes = {
        records.CLUSTER: records.encode_field("id", "abc"),
        records.CONTROLLER: records.encode_field("node", 2),
        records.PRODUCER_IDS: records.encode_producer_ids(1000, 0),
        records.LEADER_EPOCH_FLOOR: records.encode_field("epoch", 3),
        records.deleted_key("t"): records.encode_tombstone(Tombstone(UUID(int=1), 4, 5)),
    }
    image.apply(1, writes)
    assert (image.cluster_id, image.controller) == ("abc", 2)
    assert (image.next_producer_id, image.leader_epoch_floor) == (1000, 3)
    assert image.tombstones == {"t": Tombstone(UUID(int=1), 4, 5)}
    image.apply(2, dict.fromkeys(writes))
    assert (image.cluster_id, image.controller) == ("", NO_CONTROLLER)
    assert (image.next_producer_id, image.leader_epoch_floor) == (0, 0)
    assert not image.tombstones


def test_a_topic_kept_by_a_reader_does_not_change_under_it() -> None:
    image = MetadataImage()
    image.apply(1, topic_writes("t", 1, 2))
    kept = image.topics["t"]
    image.apply(2, topic_writes("t", 1, 4, {"retention.ms": "1"}))
    assert len(kept.partitions) == 2
    assert not kept.configs
    assert image.topics["t"] is not kept


def test_a_change_to_one_topic_leaves_all_others_the_same_objects() -> None:
    image = MetadataImage()
    for number in range(50):
        image.apply(number + 1, topic_writes(f"t{number}", number + 1, 3))
    before = dict(image.topics)
    image.apply(51, topic_writes("t7", 8, 4))
    assert [name for name in before if image.topics[name] is not before[name]] == ["t7"]


@st.composite
def histories(draw: st.DrawFn) -> list[Writes]:
    """Commits as a controller would make them: topics come, grow, move, go."""
    commits: list[Writes] = []
    alive: dict[str, tuple[int, int]] = {}
    for topic_id in range(1, draw(st.integers(1, 12))):
        name = draw(st.sampled_from(["a", "b", "c.d", "c_d"]))
        partitions = draw(st.integers(1, 220))
        if name in alive and draw(st.booleans()):
            commits.append(removal(name, *alive.pop(name)))
        elif name in alive:
            old_id, old_partitions = alive[name]
            partitions = max(old_partitions, partitions)
            commits.append(topic_writes(name, old_id, partitions, {"retention.ms": str(topic_id)}))
            alive[name] = (old_id, partitions)
        else:
            commits.append(topic_writes(name, topic_id, partitions))
            alive[name] = (topic_id, partitions)
    return commits


@settings(max_examples=50)
@given(histories())
def test_a_reload_gives_the_image_that_following_the_commits_gave(commits: list[Writes]) -> None:
    live = MetadataImage()
    store: dict[str, tuple[bytes, int]] = {}
    for number, writes in enumerate(commits, start=1):
        live.apply(number, writes)
        for key, value in writes.items():
            store.pop(key, None)
            if value is not None:
                store[key] = (value, number)
    reloaded = MetadataImage()
    values: Writes = {key: value for key, (value, _) in store.items()}
    reloaded.apply(len(commits), values, {key: version for key, (_, version) in store.items()})
    assert reloaded.topics == live.topics
    assert reloaded.topic_ids == live.topic_ids
    assert {key: reloaded.version_of(key) for key in reloaded.fact_keys()} == {
        key: live.version_of(key) for key in live.fact_keys()
    }
