"""Creating, growing and deleting topics: the pure decisions."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from headrace.config.settings import Listener
from headrace.core.controller import topic_control
from headrace.core.controller.config_describe import BrokerLayers
from headrace.core.controller.replica_placer import PARTITIONS_PER_TOPIC_MAX
from headrace.core.controller.topic_control import (
    TOMBSTONES_MAX,
    CreatedTopic,
    DeletedTopic,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicDeletionDisabled,
)
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision, PartitionRegistration
from headrace.metadata.store import KEYS_PER_COMMIT_MAX
from headrace.model.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    PolicyViolation,
    RequestError,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)

NO_LAYERS = BrokerLayers({}, {}, {})
DEFAULTS = TopicDefaults(partitions=4, replication_factor=1, layers=NO_LAYERS)


def cluster(brokers: int = 1) -> MetadataImage:
    image = MetadataImage()
    image.apply(1, {records.broker_key(node): records.encode_broker((), None) for node in range(1, brokers + 1)})
    image.apply(2, {records.session_key(node): records.encode_session() for node in range(1, brokers + 1)})
    return image


def decide(image: MetadataImage, *wanted: NewTopic, defaults: TopicDefaults = DEFAULTS) -> Mapping[str, object]:
    ids = {topic.name: UUID(int=number + image.revision * 1000) for number, topic in enumerate(wanted)}
    return topic_control.create_topics({topic.name: topic for topic in wanted}, image, ids, defaults)


def outcome(image: MetadataImage, topic: NewTopic, defaults: TopicDefaults = DEFAULTS) -> object:
    return decide(image, topic, defaults=defaults)[topic.name]


def commit(image: MetadataImage, decision: object) -> None:
    assert isinstance(decision, Decision), decision
    assert len(decision.writes) <= KEYS_PER_COMMIT_MAX
    image.apply(image.revision + 1, decision.writes)


def create(image: MetadataImage, name: str, **fields: object) -> None:
    commit(image, outcome(image, NewTopic(name=name, **fields)))


def delete(image: MetadataImage, target: str | UUID) -> None:
    commit(image, topic_control.delete_topics([target], image, enabled=True, now_ms=5)[target])


def grow(image: MetadataImage, name: str, total: int, assignments: object = None) -> object:
    return topic_control.add_partitions({name: NewPartitions(name, total, assignments)}, image)[name]


def test_a_created_topic_is_in_the_image_with_its_partitions_and_configs() -> None:
    image = cluster(brokers=3)
    decision = outcome(image, NewTopic(name="t", partitions=5, replication_factor=2, configs={"retention.ms": "007"}))
    assert "t" not in image.topics, "deciding changes nothing"
    commit(image, decision)
    topic = image.topics["t"]
    assert isinstance(decision, Decision)
    assert isinstance(decision.row, CreatedTopic)
    assert (decision.row.topic_id, decision.row.partitions, decision.row.replication_factor) == (topic.topic_id, 5, 2)
    assert len(topic.partitions) == 5
    assert all(state.isr == state.replicas and state.leader == state.replicas[0] for state in topic.partitions)
    assert all((state.leader_epoch, state.partition_epoch) == (0, 0) for state in topic.partitions)
    assert dict(topic.configs) == {"retention.ms": "7"}, "configs are kept as canonical text"
    assert image.topic_ids[topic.topic_id] == "t"


def test_the_row_of_a_created_topic_holds_every_config_that_is_in_force() -> None:
    layers = BrokerLayers({}, {}, {"log.retention.hours": "1"})
    decision = outcome(
        cluster(), NewTopic(name="t", configs={"cleanup.policy": "compact"}), TopicDefaults(1, 1, layers)
    )
    assert isinstance(decision, Decision)
    configs = {row.name: row.value for row in decision.row.configs}
    assert configs["cleanup.policy"] == "compact"
    assert configs["retention.ms"] == "3600000"
    assert configs["segment.bytes"] == str(1024**3)


def test_minus_one_means_the_brokers_defaults() -> None:
    decision = outcome(cluster(brokers=3), NewTopic(name="t"), TopicDefaults(7, 3, NO_LAYERS))
    assert isinstance(decision, Decision)
    assert (decision.row.partitions, decision.row.replication_factor) == (7, 3)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"partitions": 0}, InvalidPartitions),
        ({"partitions": -2}, InvalidPartitions),
        ({"partitions": PARTITIONS_PER_TOPIC_MAX + 1}, InvalidPartitions),
        ({"replication_factor": 0}, InvalidReplicationFactor),
        ({"replication_factor": -2}, InvalidReplicationFactor),
        ({"replication_factor": 4}, InvalidReplicationFactor),
        ({"assignments": {0: (1,)}, "partitions": 1}, RequestError),
        ({"assignments": {0: (1,)}, "replication_factor": 1}, RequestError),
        ({"assignments": {0: (1,), 2: (1,)}}, InvalidReplicaAssignment),
        ({"assignments": {1: (1,)}}, InvalidReplicaAssignment),
        ({"assignments": {0: ()}}, InvalidReplicaAssignment),
        ({"assignments": {0: (1, 1)}}, InvalidReplicaAssignment),
        ({"assignments": {0: (1, 9)}}, InvalidReplicaAssignment),
        ({"assignments": {0: (1, 2), 1: (1,)}}, InvalidReplicaAssignment),
        ({"configs": {"retention.ms": "soon"}}, InvalidConfig),
        ({"configs": {"retention.ms": None}}, InvalidConfig),
        ({"configs": {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "1"}}, InvalidConfig),
    ],
)
def test_a_wrong_wish_is_refused_with_kafkas_code(fields: dict[str, object], error: type[RequestError]) -> None:
    refusal = outcome(cluster(brokers=3), NewTopic(name="t", **fields))
    assert type(refusal) is error


def test_an_unknown_config_is_refused_with_the_nearest_name() -> None:
    refusal = outcome(cluster(), NewTopic(name="t", configs={"retention_ms": "1"}))
    assert isinstance(refusal, InvalidConfig)
    assert "did you mean retention.ms?" in str(refusal)


def test_an_explicit_assignment_is_taken_as_it_is() -> None:
    image = cluster(brokers=3)
    create(image, "t", assignments={1: (3, 1), 0: (2, 3)})
    assert [state.replicas for state in image.topics["t"].partitions] == [(2, 3), (3, 1)]
    assert [state.leader for state in image.topics["t"].partitions] == [2, 3]


def test_a_topic_cannot_be_created_twice() -> None:
    image = cluster()
    create(image, "t")
    assert isinstance(outcome(image, NewTopic(name="t")), TopicExists)


def test_names_that_differ_in_dots_and_underscores_only_cannot_coexist() -> None:
    image = cluster()
    create(image, "a.b")
    refusal = outcome(image, NewTopic(name="a_b"))
    assert isinstance(refusal, InvalidTopic)
    assert "a.b" in str(refusal)
    delete(image, "a.b")
    create(image, "a_b")


def test_colliding_names_in_one_request_are_noticed() -> None:
    outcomes = decide(cluster(), NewTopic(name="a.b"), NewTopic(name="a_b"), NewTopic(name="c"))
    assert isinstance(outcomes["a.b"], Decision)
    assert isinstance(outcomes["a_b"], InvalidTopic)
    assert isinstance(outcomes["c"], Decision)


def test_one_request_creates_a_limited_number_of_partitions() -> None:
    wanted = [NewTopic(name=name, partitions=4000) for name in "abcd"] + [NewTopic(name="e", partitions=2000)]
    outcomes = decide(cluster(), *wanted)
    assert [isinstance(outcomes[name], PolicyViolation) for name in "abcde"] == [False, False, True, True, False]


def test_the_largest_topic_is_created_and_deleted_in_one_commit_each() -> None:
    image = cluster()
    create(image, "big", partitions=PARTITIONS_PER_TOPIC_MAX)
    delete(image, "big")
    create(image, "big", partitions=PARTITIONS_PER_TOPIC_MAX)
    assert len(image.topics["big"].partitions) == PARTITIONS_PER_TOPIC_MAX


def test_a_topic_grows_and_its_old_partitions_stay_as_they_were() -> None:
    image = cluster(brokers=3)
    create(image, "t", partitions=2, replication_factor=2)
    before = image.topics["t"].partitions
    decision = grow(image, "t", 205)
    assert isinstance(decision, Decision)
    assert decision.row == 205
    commit(image, decision)
    after = image.topics["t"].partitions
    assert len(after) == 205
    assert after[:2] == before
    assert all(len(state.replicas) == 2 for state in after)


@pytest.mark.parametrize(
    ("total", "assignments", "error"),
    [
        (2, None, InvalidPartitions),
        (1, None, InvalidPartitions),
        (0, None, InvalidPartitions),
        (PARTITIONS_PER_TOPIC_MAX + 1, None, InvalidPartitions),
        (4, ((1, 2),), InvalidReplicaAssignment),
        (3, ((1,),), InvalidReplicaAssignment),
        (3, ((1, 9),), InvalidReplicaAssignment),
        (3, ((2, 2),), InvalidReplicaAssignment),
    ],
)
def test_a_wrong_growth_is_refused(total: int, assignments: object, error: type[RequestError]) -> None:
    image = cluster(brokers=3)
    create(image, "t", partitions=2, replication_factor=2)
    assert type(grow(image, "t", total, assignments)) is error


def test_a_broker_that_is_away_gets_replicas_only_where_too_few_are_there() -> None:
    image = cluster(brokers=3)
    image.apply(image.revision + 1, {records.session_key(2): None})
    create(image, "two", partitions=6, replication_factor=2)
    assert all(set(state.replicas) == set(state.isr) == {1, 3} for state in image.topics["two"].partitions)
    create(image, "three", partitions=6, replication_factor=3)
    commit(image, grow(image, "three", 9, None))
    states = image.topics["three"].partitions
    assert all(set(state.replicas) == {1, 2, 3} and set(state.isr) == {1, 3} for state in states)
    assert all(state.leader == state.isr[0] == state.replicas[0] for state in states)
    assert {state.leader for state in states} == {1, 3}
    refusal = outcome(image, NewTopic(name="four", replication_factor=4))
    assert isinstance(refusal, InvalidReplicationFactor)
    assert "only 3 broker(s) are registered" in str(refusal)


def test_a_broker_that_is_away_may_be_assigned_but_not_alone() -> None:
    image = cluster(brokers=2)
    image.apply(image.revision + 1, {records.session_key(1): None})
    commit(image, outcome(image, NewTopic(name="t", assignments={0: (1, 2)})))
    assert image.topics["t"].partitions[0] == PartitionRegistration((1, 2), (2,), 2, 0, 0)
    assert isinstance(outcome(image, NewTopic(name="u", assignments={0: (1,)})), InvalidReplicaAssignment)


def test_nothing_is_created_while_nobody_is_there() -> None:
    image = cluster(brokers=1)
    image.apply(image.revision + 1, {records.session_key(1): None})
    assert isinstance(outcome(image, NewTopic(name="t")), InvalidReplicationFactor)


def test_brokers_without_a_rack_that_share_a_host_do_not_share_a_partition() -> None:
    image = cluster(brokers=4)
    hosts = {1: "a", 2: "a", 3: "b", 4: "b"}
    image.apply(
        image.revision + 1,
        {
            records.broker_key(node): records.encode_broker((Listener("PLAINTEXT", host, 9092 + node),), None)
            for node, host in hosts.items()
        },
    )
    image.apply(image.revision + 1, {records.session_key(node): records.encode_session() for node in hosts})
    create(image, "t", partitions=12, replication_factor=2)
    assert all({hosts[one] for one in state.replicas} == {"a", "b"} for state in image.topics["t"].partitions)


def test_new_partitions_go_where_they_are_assigned() -> None:
    image = cluster(brokers=3)
    create(image, "t", partitions=1, replication_factor=2)
    commit(image, grow(image, "t", 3, ((3, 1), (2, 1))))
    assert [state.replicas for state in image.topics["t"].partitions[1:]] == [(3, 1), (2, 1)]


def test_growing_is_refused_for_a_topic_that_is_not_there() -> None:
    assert isinstance(grow(cluster(), "t", 3), UnknownTopic)


def test_a_deleted_topic_leaves_nothing_but_a_tombstone() -> None:
    image = cluster()
    keys_before = set(image.fact_keys())
    create(image, "t", partitions=250)
    topic = image.topics["t"]
    delete(image, "t")
    assert "t" not in image.topics
    assert topic.topic_id not in image.topic_ids
    assert set(image.fact_keys()) - keys_before == {records.deleted_key("t")}
    assert image.tombstones["t"].topic_id == topic.topic_id
    assert image.tombstones["t"].deleted_ms == 5


def test_topics_are_deleted_by_id_too_but_not_twice_in_one_request() -> None:
    image = cluster()
    create(image, "t")
    topic_id = image.topics["t"].topic_id
    outcomes = topic_control.delete_topics([topic_id, "t", "u", UUID(int=1)], image, enabled=True, now_ms=0)
    decision = outcomes[topic_id]
    assert isinstance(decision, Decision)
    assert decision.row == DeletedTopic("t", topic_id)
    assert type(outcomes["t"]) is RequestError
    assert isinstance(outcomes["u"], UnknownTopic)
    assert isinstance(outcomes[UUID(int=1)], UnknownTopicId)


def test_deleting_can_be_switched_off() -> None:
    image = cluster()
    create(image, "t")
    (refusal,) = topic_control.delete_topics(["t"], image, enabled=False, now_ms=0).values()
    assert isinstance(refusal, TopicDeletionDisabled)
    assert refusal.code is ErrorCode.TOPIC_DELETION_DISABLED


def test_rule_19_a_recreated_topic_has_a_new_id_and_a_higher_leader_epoch() -> None:
    image = cluster()
    ids = set()
    for round_number in range(3):
        create(image, "t")
        ids.add(image.topics["t"].topic_id)
        assert {state.leader_epoch for state in image.topics["t"].partitions} == {round_number}
        delete(image, "t")
    assert len(ids) == 3


def test_rule_19_holds_for_partitions_added_to_a_recreated_topic() -> None:
    image = cluster()
    create(image, "t", partitions=8)
    delete(image, "t")
    create(image, "t", partitions=1)
    commit(image, grow(image, "t", 8))
    assert {state.leader_epoch for state in image.topics["t"].partitions} == {1}


def test_rule_19_holds_after_old_tombstones_were_let_go() -> None:
    image = cluster()
    create(image, "t")
    delete(image, "t")
    create(image, "t")  # epoch 1
    delete(image, "t")
    for number in range(TOMBSTONES_MAX):
        create(image, f"other-{number}", partitions=1)
        delete(image, f"other-{number}")
    assert len(image.tombstones) == TOMBSTONES_MAX + 1
    pruning = topic_control.prune_tombstones(image)
    assert pruning.row == 1
    commit(image, pruning)
    assert "t" not in image.tombstones
    assert topic_control.prune_tombstones(image) == Decision(0, {})
    create(image, "t")
    assert {state.leader_epoch for state in image.topics["t"].partitions} == {2}
