"""What several scripts need before they can ask: topics, records, members of groups, open transactions.

Every function asks the broker in one fixed version and is not recorded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from tests.golden.batches import TRANSACTIONAL, batch
from tests.golden.conversation import Conversation, Script

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 11, 12, 13, 14, 15, 16
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN = 23, 24, 25, 26
WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 27, 28, 29, 30, 31
DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 32, 33, 34, 35
CREATE_PARTITIONS, DELETE_GROUPS, ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS = 37, 42, 43, 44
ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS, OFFSET_DELETE = 45, 46, 47
DESCRIBE_QUORUM, UPDATE_FEATURES, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS = 55, 57, 60, 61
UNREGISTER_BROKER, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 64, 65, 66
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69
LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
UNKNOWN_ID = UUID(int=0xDEAD)


class ScriptFor(NamedTuple):
    api: int
    title: str  # empty for the first script of an API
    wait_until_flushed: bool
    after_another: bool
    script: Script


SCRIPTS: list[ScriptFor] = []


def script(
    api: int, title: str = "", *, wait_until_flushed: bool = False, after_another: bool = False
) -> Callable[[Script], Script]:
    """On disk: what is written is committed a while later. After another: beside a broker that leads and is away."""

    def register(function: Script) -> Script:
        SCRIPTS.append(ScriptFor(api, title, wait_until_flushed, after_another, function))
        return function

    return register


# Topics and records


def create_topic(c: Conversation, name: str, partitions: int = 1, **configs: str) -> UUID:
    response = c.arrange(
        CREATE_TOPICS,
        7,
        topics=[
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
            }
        ],
        timeout=1000,
    )
    topic_id: UUID = response["topics"][0]["topic_id"]
    return topic_id


def delete_topic(c: Conversation, name: str) -> None:
    c.arrange(DELETE_TOPICS, 5, topic_names=[name], timeout=1000)


def create_topic_twice(c: Conversation, name: str) -> UUID:
    """A topic whose leader epoch is 1: the one of that name before it has had epoch 0."""
    create_topic(c, name)
    delete_topic(c, name)
    return create_topic(c, name)


def produce(c: Conversation, topic: str, records: bytes, index: int = 0, transactional_id: str | None = None) -> int:
    response = c.arrange(
        PRODUCE,
        9,
        acks=-1,
        timeout=1000,
        transactional_id=transactional_id,
        topic_data=[{"name": topic, "partition_data": [{"index": index, "records": records}]}],
    )
    offset: int = response["responses"][0]["partition_responses"][0]["base_offset"]
    return offset


class Topics:
    """Topics by name and id: a version takes what it knows."""

    def __init__(self) -> None:
        self.ids: dict[str, UUID] = {}

    def create(self, c: Conversation, name: str, partitions: int = 1, **configs: str) -> None:
        self.ids[name] = create_topic(c, name, partitions, **configs)

    def data(self, name: str, *rows: tuple[int, bytes | None]) -> dict[str, Any]:
        partitions = [{"index": index, "records": records} for index, records in rows]
        return {"name": name, "topic_id": self.ids.get(name, UNKNOWN_ID), "partition_data": partitions}

    def write(self, name: str, records: bytes | None, index: int = 0, acks: int = -1, **more: Any) -> dict[str, Any]:
        return {"acks": acks, "timeout": 1500, "topic_data": [self.data(name, (index, records))], **more}


# Groups


def find_coordinator(c: Conversation, key: str, key_type: int = 0) -> None:
    """The first question makes the internal topic."""
    c.arrange(FIND_COORDINATOR, 3, key=key, key_type=key_type)


class Member(NamedTuple):
    member_id: str
    generation: int


PROTOCOLS = [{"name": "range", "metadata": b"\1\2"}, {"name": "roundrobin", "metadata": b"\3"}]


def join_group(c: Conversation, group_id: str, instance_id: str | None = None, assignment: bytes = b"mine") -> Member:
    """A group of one member, stable."""
    find_coordinator(c, group_id)
    wish: dict[str, Any] = {
        "group_id": group_id,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "group_instance_id": instance_id,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
    }
    joined = c.arrange(JOIN_GROUP, 3 if instance_id is None else 5, **wish, member_id="")
    member = Member(joined["member_id"], joined["generation_id"])
    c.arrange(
        SYNC_GROUP,
        3,
        group_id=group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=instance_id,
        assignments=[{"member_id": member.member_id, "assignment": assignment}],
    )
    return member


def join_consumer_group(c: Conversation, group_id: str, *topics: str) -> Member:
    """A member of a group whose assignment the broker decides; `generation` is its epoch."""
    find_coordinator(c, group_id)
    response = c.arrange(
        CONSUMER_GROUP_HEARTBEAT,
        0,
        group_id=group_id,
        member_epoch=0,
        rebalance_timeout=60_000,
        subscribed_topic_names=list(topics),
        topic_partitions=[],
    )
    return Member(response["member_id"], response["member_epoch"])


def commit_offset(c: Conversation, group_id: str, topic: str, offset: int, index: int = 0) -> None:
    find_coordinator(c, group_id)
    rows = [{"partition_index": index, "committed_offset": offset, "committed_metadata": f"at {offset}"}]
    topics = [{"name": topic, "partitions": rows}]
    c.arrange(OFFSET_COMMIT, 8, group_id=group_id, generation_id_or_member_epoch=-1, topics=topics)


# Transactions


CONCURRENT_TRANSACTIONS = 51


class Producer(NamedTuple):
    producer_id: int
    epoch: int


def init_producer(c: Conversation, transactional_id: str | None = None) -> Producer:
    if transactional_id is not None:
        find_coordinator(c, transactional_id, 1)
    fields: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
    fields |= {"producer_id": -1, "producer_epoch": -1}
    response = c.arrange(INIT_PRODUCER_ID, 4, allowed=[CONCURRENT_TRANSACTIONS], **fields)
    if response["error_code"] == CONCURRENT_TRANSACTIONS:
        c.broker.pass_time(100)  # until the transaction of its predecessor is aborted
        response = c.arrange(INIT_PRODUCER_ID, 4, **fields)
    return Producer(response["producer_id"], response["producer_epoch"])


def add_partitions(c: Conversation, transactional_id: str, producer: Producer, topic: str, *indexes: int) -> None:
    c.arrange(
        ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[{"name": topic, "partitions": list(indexes)}],
    )


def open_transaction(c: Conversation, transactional_id: str, topic: str, *values: str, index: int = 0) -> Producer:
    """A transaction with one batch in it."""
    producer = init_producer(c, transactional_id)
    add_partitions(c, transactional_id, producer, topic, index)
    records = batch(*values, producer=producer, sequence=0, attributes=TRANSACTIONAL)
    produce(c, topic, records, index, transactional_id)
    return producer


def end_transaction(c: Conversation, transactional_id: str, producer: Producer, *, commit: bool) -> None:
    c.arrange(
        END_TXN,
        4,
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    c.broker.pass_time(100)  # until the markers are written
