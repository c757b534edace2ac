"""Admin calls that would move leaders, replicas and files, and those for ACLs: on one node without access control."""

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as KafkaPythonResourceType
from kafka.errors import (
    ElectionNotNeededError,
    InvalidReplicationAssignmentError,
    LogDirNotFoundError,
    NoError,
    NoReassignmentInProgressError,
    SecurityDisabledError,
    UnknownTopicOrPartitionError,
)

from tests.compat.client_driver import SECONDS_MAX
from tests.compat.nodes import of_one_broker

NOWHERE = "there-never-was-such-a-topic"


@pytest.fixture
def kafka_admin(bootstrap) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as client:
        yield client


def node_of(kafka_admin) -> int:
    (node,) = kafka_admin.describe_cluster()["brokers"]
    return node["broker_id"]


def error_of(future) -> int:
    with pytest.raises(KafkaException) as refusal:
        future.result(SECONDS_MAX)
    return refusal.value.args[0].code()


# Elections


@pytest.mark.parametrize("kind", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_confluent_is_told_that_no_election_is_needed(admin, new_topic, kind):
    topic = new_topic(partitions=2)
    asked = [Place(topic, 0), Place(topic, 1), Place(topic, 2), Place(NOWHERE, 0)]
    outcomes = admin.elect_leaders(kind, asked).result(SECONDS_MAX)
    codes = {(place.topic, place.partition): error.code() for place, error in outcomes.items()}
    assert codes == {
        (topic, 0): KafkaError.ELECTION_NOT_NEEDED,
        (topic, 1): KafkaError.ELECTION_NOT_NEEDED,
        (topic, 2): KafkaError.UNKNOWN_TOPIC_OR_PART,
        (NOWHERE, 0): KafkaError.UNKNOWN_TOPIC_OR_PART,
    }


def test_confluent_is_told_nothing_when_it_asks_about_all_partitions(admin, topic):
    assert admin.elect_leaders(ElectionType.PREFERRED, None).result(SECONDS_MAX) == {}


def test_kafka_python_is_told_that_no_election_is_needed(kafka_admin, new_topic):
    topic = new_topic(partitions=2)
    response = kafka_admin.elect_leaders(0, {topic: [0, 1]})
    (row,) = response.replica_election_results
    assert row.topic == topic
    assert [(one.partition_id, one.error_code) for one in row.partition_result] == [
        (0, ElectionNotNeededError.errno),
        (1, ElectionNotNeededError.errno),
    ]
    with pytest.raises(UnknownTopicOrPartitionError):
        kafka_admin.elect_leaders(0, {NOWHERE: [0]})


# Reassignments


@of_one_broker
def test_replicas_stay_where_they_are(kafka_admin, new_topic):
    topic = new_topic(partitions=2)
    node = node_of(kafka_admin)
    outcomes = kafka_admin.alter_partition_reassignments(
        {
            TopicPartition(topic, 0): [node],
            TopicPartition(topic, 1): [node, node + 1],
            TopicPartition(topic, 2): [node],
            TopicPartition(NOWHERE, 0): [node],
        }
    )
    assert outcomes == {
        TopicPartition(topic, 0): None,
        TopicPartition(topic, 1): InvalidReplicationAssignmentError,
        TopicPartition(topic, 2): UnknownTopicOrPartitionError,
        TopicPartition(NOWHERE, 0): UnknownTopicOrPartitionError,
    }
    (described,) = kafka_admin.describe_topics([topic])
    assert [part["replica_nodes"] for part in described["partitions"]] == [[node], [node]]


def test_no_reassignment_is_in_progress(kafka_admin, topic):
    place = TopicPartition(topic, 0)
    assert kafka_admin.alter_partition_reassignments({place: None}) == {place: NoReassignmentInProgressError}
    assert kafka_admin.list_partition_reassignments() == {}
    assert kafka_admin.list_partition_reassignments({topic: [0, 5], NOWHERE: [0]}) == {}


# Log directories


@of_one_broker
def test_a_replica_stays_in_the_directory_that_it_is_in(kafka_admin, new_topic):
    topic = new_topic(partitions=2)
    node = node_of(kafka_admin)
    (broker,) = kafka_admin.describe_log_dirs({topic: [0, 1]})
    (folder,) = broker["log_dirs"]
    outcomes = kafka_admin.alter_replica_log_dirs(
        {
            (topic, 0, node): folder["log_dir"],
            (topic, 1, node): "/no/such/directory",
            (topic, 2, node): folder["log_dir"],
            (NOWHERE, 0, node): folder["log_dir"],
        }
    )
    assert {(one.topic, one.partition): error for one, error in outcomes.items()} == {
        (topic, 0): NoError,
        (topic, 1): LogDirNotFoundError,
        (topic, 2): UnknownTopicOrPartitionError,
        (NOWHERE, 0): UnknownTopicOrPartitionError,
    }


# ACLs


def test_confluent_is_told_that_there_is_no_access_control(admin, topic):
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    reading = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    # The client drops the error of the whole answer: a broker without access control looks like one without ACLs.
    assert admin.describe_acls(everything).result(SECONDS_MAX) == []
    assert error_of(admin.create_acls([reading])[reading]) == KafkaError.SECURITY_DISABLED
    assert error_of(admin.delete_acls([everything])[everything]) == KafkaError.SECURITY_DISABLED


def test_kafka_python_is_told_that_there_is_no_access_control(kafka_admin, topic):
    everything = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(KafkaPythonResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    reading = ACL(
        principal="User:alice",
        host="*",
        operation=ACLOperation.READ,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(KafkaPythonResourceType.TOPIC, topic),
    )
    with pytest.raises(SecurityDisabledError):
        kafka_admin.describe_acls(everything)
    assert kafka_admin.create_acls([reading]) == {"succeeded": [], "failed": [SecurityDisabledError]}
    ((asked, matching, error),) = kafka_admin.delete_acls([everything])
    assert (asked, matching, error) == (everything, [], SecurityDisabledError)
