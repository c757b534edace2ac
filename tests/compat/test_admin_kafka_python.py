"""The admin calls of kafka-python."""

from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic, OffsetSpec
from kafka.errors import (
    InvalidConfigurationError,
    InvalidReplicationFactorError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.compat.client_driver import SECONDS_MAX, Sent
from tests.compat.client_kafka_python import KafkaPython
from tests.compat.nodes import of_one_broker
from tests.compat.topics import until_all_brokers_know
from tests.patience import awaited

A_TIME_MS = 1_700_000_000_000


@pytest.fixture
def kafka_admin(bootstrap) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as client:
        yield client


@pytest.fixture
def kafka_python(bootstrap) -> KafkaPython:
    return KafkaPython(bootstrap)


def topic_resource(name: str, configs: dict[str, str] | None = None) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, name, configs)


def test_a_topic_is_created_described_and_deleted(kafka_admin, bootstrap):
    name = "kafka-python-admin"
    created = kafka_admin.create_topics([NewTopic(name, 3, 1)])["topics"][0]
    assert (created["name"], created["error_code"], created["num_partitions"]) == (name, 0, 3)
    until_all_brokers_know(bootstrap, name, 3)
    (described,) = kafka_admin.describe_topics([name])
    assert sorted(part["partition_index"] for part in described["partitions"]) == [0, 1, 2]
    assert name in kafka_admin.list_topics()
    kafka_admin.delete_topics([name])
    until_all_brokers_know(bootstrap, name, 0)
    assert name not in kafka_admin.list_topics()


def test_refusals_come_as_the_right_errors(kafka_admin, topic):
    with pytest.raises(TopicAlreadyExistsError):
        kafka_admin.create_topics([NewTopic(topic, 1, 1)])
    with pytest.raises(InvalidReplicationFactorError):
        kafka_admin.create_topics([NewTopic("too-many-replicas", 1, 9)])
    with pytest.raises(InvalidConfigurationError):
        kafka_admin.create_topics([NewTopic("bad-config", 1, 1, topic_configs={"retention.ms": "soon"})])
    with pytest.raises(UnknownTopicOrPartitionError):
        kafka_admin.delete_topics(["there-never-was-such-a-topic"])


def test_partitions_are_added(kafka_admin, bootstrap, topic):
    kafka_admin.create_partitions({topic: NewPartitions(3)})
    until_all_brokers_know(bootstrap, topic, 3)
    (described,) = kafka_admin.describe_topics([topic])
    assert len(described["partitions"]) == 3


def test_topic_configs_come_with_synonyms_and_change(kafka_admin, topic):
    kafka_admin.alter_configs([topic_resource(topic, {"retention.ms": "1000"})])
    described = awaited(
        lambda: kafka_admin.describe_configs([topic_resource(topic)], include_synonyms=True, config_filter="all"),
        lambda answer: answer["topic"][topic]["retention.ms"]["value"] == "1000",
        "the broker that is asked knows the config",
        SECONDS_MAX,
    )["topic"][topic]
    assert described["retention.ms"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    synonyms = described["retention.ms"]["synonyms"]
    assert synonyms[0]["name"] == "retention.ms"
    assert described["cleanup.policy"]["config_source"] == "DEFAULT_CONFIG"
    assert [synonym["name"] for synonym in described["cleanup.policy"]["synonyms"]] == ["log.cleanup.policy"]
    kafka_admin.reset_configs([topic_resource(topic, {"retention.ms": None})])
    awaited(
        lambda: kafka_admin.describe_configs([topic_resource(topic)], config_filter="modified")["topic"],
        lambda modified: "retention.ms" not in modified.get(topic, {}),
        "the broker that is asked knows that the config is reset",
        SECONDS_MAX,
    )


def test_records_are_deleted_up_to_an_offset(kafka_admin, kafka_python, topic):
    kafka_python.produce(topic, [Sent(b"%d" % number) for number in range(10)])
    place = TopicPartition(topic, 0)
    assert kafka_admin.delete_records({place: 7})[place]["low_watermark"] == 7
    assert kafka_python.offsets(topic) == (7, 10)
    with pytest.raises(OffsetOutOfRangeError):
        kafka_admin.delete_records({place: 100})
    assert kafka_admin.delete_records({place: -1})[place]["low_watermark"] == 10
    assert kafka_python.offsets(topic) == (10, 10)


@of_one_broker
def test_log_dirs_show_every_partition_and_its_size(kafka_admin, kafka_python, new_topic):
    topic = new_topic(partitions=2)
    kafka_python.produce(topic, [Sent(bytes(10_000))])
    (broker,) = kafka_admin.describe_log_dirs({topic: [0, 1]})
    (folder,) = broker["log_dirs"]
    assert folder["error_code"] == 0
    ((name, partitions),) = [(row["name"], row["partitions"]) for row in folder["topics"]]
    sizes = {row["partition_index"]: row["partition_size"] for row in partitions}
    assert name == topic
    assert sizes[0] > 10_000
    assert sizes[1] == 0


def test_offsets_are_listed(kafka_admin, kafka_python, topic):
    for timestamp_ms in (A_TIME_MS, A_TIME_MS + 9000, A_TIME_MS + 5000):
        kafka_python.produce(topic, [Sent(b"x", timestamp_ms=timestamp_ms)])
    place = TopicPartition(topic, 0)

    def listed(specification) -> int:
        return kafka_admin.list_partition_offsets({place: specification})[place].offset

    assert listed(OffsetSpec.EARLIEST) == 0
    assert listed(OffsetSpec.LATEST) == 3
    assert listed(OffsetSpec.MAX_TIMESTAMP) == 1


@of_one_broker
def test_the_cluster_and_its_quorum_are_described(kafka_admin, bootstrap):
    cluster = kafka_admin.describe_cluster()
    (node,) = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == bootstrap
    assert cluster["controller_id"] == node["broker_id"]
    quorum = kafka_admin.describe_metadata_quorum()
    (partition,) = quorum["topics"][0]["partitions"]
    assert partition["leader_id"] == node["broker_id"]
    assert [voter["replica_id"] for voter in partition["current_voters"]] == [node["broker_id"]]


def test_topics_are_described_in_pages(kafka_admin, new_topic):
    topic = new_topic(partitions=5)
    seen: list[int] = []
    cursor = None
    for _ in range(5):
        page = kafka_admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        seen += [part["partition_index"] for part in page["topics"][0]["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [0, 1, 2, 3, 4]


def test_idempotent_producers_are_described(kafka_admin, kafka_python, topic):
    kafka_python.produce(topic, [Sent(b"x"), Sent(b"y")], idempotent=True)
    place = TopicPartition(topic, 0)
    described = kafka_admin.describe_producers([place])
    (producer,) = described[place].active_producers
    assert producer.last_sequence == 1
    assert producer.producer_id >= 0
    assert producer.current_transaction_start_offset == -1
