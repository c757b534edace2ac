"""The admin calls of confluent-kafka (librdkafka)."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.client_confluent import Confluent
from tests.compat.client_driver import SECONDS_MAX, Sent
from tests.compat.nodes import of_one_broker
from tests.compat.topics import until_all_brokers_know

A_TIME_MS = 1_700_000_000_000


@pytest.fixture
def confluent(bootstrap) -> Confluent:
    return Confluent(bootstrap)


def error_of(future) -> int:
    with pytest.raises(KafkaException) as refusal:
        future.result(SECONDS_MAX)
    return refusal.value.args[0].code()


def eventually(holds: Callable[[], bool]) -> None:
    """Brokers learn of a changed config a moment after it was accepted, those of Apache Kafka too."""
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, "it never came true"


def configs_of(admin, resource: ConfigResource) -> dict[str, ConfigEntry]:
    return admin.describe_configs([resource])[resource].result(SECONDS_MAX)


def test_a_topic_is_created_described_and_deleted(admin, bootstrap, new_topic):
    name = new_topic(partitions=3)
    described = admin.describe_topics(TopicCollection([name]))[name].result(SECONDS_MAX)
    assert described.name == name
    assert len(str(described.topic_id)) > 10
    assert [part.id for part in described.partitions] == [0, 1, 2]
    assert all(part.leader.id == part.replicas[0].id == part.isr[0].id for part in described.partitions)
    assert name in admin.list_topics(timeout=SECONDS_MAX).topics
    admin.delete_topics([name])[name].result(SECONDS_MAX)
    until_all_brokers_know(bootstrap, name, 0)
    assert name not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_a_deleted_topic_comes_back_empty_under_a_new_id(admin, bootstrap, confluent, new_topic):
    name = new_topic()
    confluent.produce(name, [Sent(b"old")])
    before = admin.describe_topics(TopicCollection([name]))[name].result(SECONDS_MAX).topic_id
    admin.delete_topics([name])[name].result(SECONDS_MAX)
    until_all_brokers_know(bootstrap, name, 0)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS_MAX)
    until_all_brokers_know(bootstrap, name, 1)
    after = admin.describe_topics(TopicCollection([name]))[name].result(SECONDS_MAX).topic_id
    assert str(before) != str(after)
    assert confluent.offsets(name) == (0, 0)
    assert confluent.produce(name, [Sent(b"new")]) == [0]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("no spaces please", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("too-many-replicas", 1, 5), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("unknown-config", 1, 1, config={"no.such.config": "1"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic[:20] if isinstance(value, NewTopic) else str(value),
)
def test_impossible_topics_are_refused_with_kafkas_code(admin, wanted, code):
    assert error_of(admin.create_topics([wanted])[wanted.topic]) == code
    assert wanted.topic not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_a_topic_exists_once(admin, topic):
    assert error_of(admin.create_topics([NewTopic(topic, 1, 1)])[topic]) == KafkaError.TOPIC_ALREADY_EXISTS


def test_deleting_what_is_not_there_is_refused(admin):
    name = "there-never-was-such-a-topic"
    assert error_of(admin.delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_validating_creates_nothing(admin):
    name = "only-validated"
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(SECONDS_MAX)
    assert name not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_partitions_are_added_and_never_taken_away(admin, bootstrap, confluent, topic):
    confluent.produce(topic, [Sent(b"kept")])
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(SECONDS_MAX)
    until_all_brokers_know(bootstrap, topic, 4)
    assert len(admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions) == 4
    assert confluent.offsets(topic, 0) == (0, 1)
    assert confluent.produce(topic, [Sent(b"new", partition=3)]) == [0]
    for count in (4, 2):
        future = admin.create_partitions([NewPartitions(topic, count)])[topic]
        assert error_of(future) == KafkaError.INVALID_PARTITIONS


def test_topic_configs_come_with_defaults_and_sources(admin, new_topic):
    resource = ConfigResource(ResourceType.TOPIC, new_topic(**{"retention.ms": "12345"}))
    configs = configs_of(admin, resource)
    assert configs["retention.ms"].value == "12345"
    assert configs["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not configs["retention.ms"].is_default
    assert configs["segment.bytes"].value == str(1024**3)
    assert configs["segment.bytes"].is_default
    assert configs["cleanup.policy"].value == "delete"
    assert {"compression.type", "min.insync.replicas", "max.message.bytes", "message.timestamp.type"} <= set(configs)


def test_topic_configs_are_set_extended_and_taken_back(admin, topic):
    def alter(*changes: tuple[str, str, AlterConfigOpType]) -> None:
        entries = [ConfigEntry(name, value, incremental_operation=operation) for name, value, operation in changes]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)

    def value_of(name: str) -> str:
        return configs_of(admin, ConfigResource(ResourceType.TOPIC, topic))[name].value

    alter(("retention.ms", "1000", AlterConfigOpType.SET), ("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    eventually(lambda: value_of("retention.ms") == "1000")
    eventually(lambda: sorted(value_of("cleanup.policy").split(",")) == ["compact", "delete"])
    alter(("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    eventually(lambda: value_of("cleanup.policy") == "compact")
    alter(("retention.ms", "", AlterConfigOpType.DELETE))
    eventually(lambda: value_of("retention.ms") == "604800000")


def test_a_config_that_makes_no_sense_changes_nothing(admin, topic):
    entry = ConfigEntry("retention.ms", "never", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    assert error_of(admin.incremental_alter_configs([resource])[resource]) == KafkaError.INVALID_CONFIG
    configs = configs_of(admin, ConfigResource(ResourceType.TOPIC, topic))
    assert configs["retention.ms"].value == "604800000"


@of_one_broker
def test_broker_configs_are_described_and_reach_topics_at_run_time(admin, topic):
    node = next(iter(admin.list_topics(timeout=SECONDS_MAX).brokers))
    configs = configs_of(admin, ConfigResource(ResourceType.BROKER, str(node)))
    assert configs["num.partitions"].value is not None
    assert configs["advertised.listeners"].is_read_only

    def alter(value: str, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.delete.retention.ms", value, incremental_operation=operation)
        change = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        admin.incremental_alter_configs([change])[change].result(SECONDS_MAX)

    def seen_by_topic() -> str:
        return configs_of(admin, ConfigResource(ResourceType.TOPIC, topic))["delete.retention.ms"].value

    alter("54321", AlterConfigOpType.SET)
    eventually(lambda: seen_by_topic() == "54321")
    alter("", AlterConfigOpType.DELETE)
    eventually(lambda: seen_by_topic() == "86400000")


def test_records_are_deleted_up_to_an_offset(admin, confluent, topic):
    confluent.produce(topic, [Sent(b"%d" % number) for number in range(10)])
    place = TopicPartition(topic, 0, 4)
    assert admin.delete_records([place])[place].result(SECONDS_MAX).low_watermark == 4
    assert confluent.offsets(topic) == (4, 10)
    assert [record.offset for record in confluent.consume(topic, 6, offset=4)] == list(range(4, 10))
    beyond = TopicPartition(topic, 0, 11)
    assert error_of(admin.delete_records([beyond])[beyond]) == KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_are_listed_by_every_specification(admin, confluent, topic):
    for timestamp_ms in (A_TIME_MS, A_TIME_MS + 9000, A_TIME_MS + 5000):
        confluent.produce(topic, [Sent(b"x", timestamp_ms=timestamp_ms)])

    def listed(specification) -> tuple[int, int]:
        place = TopicPartition(topic, 0)
        found = admin.list_offsets({place: specification})[place].result(SECONDS_MAX)
        return found.offset, found.timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.latest())[0] == 3
    assert listed(OffsetSpec.max_timestamp()) == (1, A_TIME_MS + 9000)
    assert listed(OffsetSpec.for_timestamp(A_TIME_MS + 1)) == (1, A_TIME_MS + 9000)
    assert listed(OffsetSpec.for_timestamp(A_TIME_MS + 9001)) == (-1, -1)


@of_one_broker
def test_the_cluster_is_described(admin, bootstrap):
    cluster = admin.describe_cluster().result(SECONDS_MAX)
    assert cluster.cluster_id
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id


def test_a_topic_is_made_by_the_first_producer_when_the_broker_allows_it(admin, confluent):
    name = f"made-by-producing-{time.time_ns()}"
    assert confluent.produce(name, [Sent(b"first")]) == [0]
    assert confluent.consume(name, 1)[0].value == b"first"
    admin.delete_topics([name])[name].result(SECONDS_MAX)
