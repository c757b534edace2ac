"""Beside a broker that is away: it leads the topic `elsewhere`, and it coordinates all groups and transactions.

In all these answers the error codes matter: whom a client asks next, and whether it tries again.
"""

from typing import Any
from uuid import UUID

from tests.golden.batches import TRANSACTIONAL, batch
from tests.golden.broker_under_test import DATA_DIR
from tests.golden.conversation import Conversation
from tests.golden.scripts.common import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    BROKER,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    ELECT_LEADERS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_CONFIG_RESOURCES,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    PROTOCOLS,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
    UNREGISTER_BROKER,
    WRITE_TXN_MARKERS,
    create_topic,
    delete_topic,
    script,
)

AWAY = "another broker is away"
ELSEWHERE = "elsewhere"


def topic_ids(c: Conversation) -> dict[str, UUID]:
    create_topic(c, "here")
    response = c.arrange(METADATA, 12, allowed=range(128), topics=None)
    return {row["name"]: row["topic_id"] for row in response["topics"]}


# What the leader of a partition answers


@script(PRODUCE, AWAY, after_another=True)
def produce_elsewhere(c: Conversation) -> None:
    ids = topic_ids(c)

    def of(*names: str, acks: int = -1) -> dict[str, Any]:
        data = [{"index": 0, "records": batch("a")}]
        topics = [{"name": name, "topic_id": ids[name], "partition_data": data} for name in names]
        return {"acks": acks, "timeout": 1000, "topic_data": topics}

    c.error("a leader that is away", **of(ELSEWHERE))
    c.error("a leader that is away, repeated", **of(ELSEWHERE))
    c.error("one here, one elsewhere", **of("here", ELSEWHERE))
    records = batch("t", producer=(5, 0), sequence=0, attributes=TRANSACTIONAL)
    data = [{"name": "here", "topic_id": ids["here"], "partition_data": [{"index": 0, "records": records}]}]
    c.any("transactional", wait_ms=2000, **{**of("here"), "transactional_id": "tx", "topic_data": data})
    c.error("acks=0", **of(ELSEWHERE, acks=0))
    c.ok("a leader that is here", **of("here"))


@script(FETCH, AWAY, after_another=True)
def fetch_elsewhere(c: Conversation) -> None:
    ids = topic_ids(c)

    def of(*names: str, epoch: int = -1, **more: Any) -> dict[str, Any]:
        row = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": epoch, "log_start_offset": -1}
        row |= {"partition_max_bytes": 1000, "last_fetched_epoch": -1}
        topics = [{"topic": name, "topic_id": ids[name], "partitions": [row]} for name in names]
        limits = {"replica_id": -1, "max_wait": 100, "min_bytes": 0, "max_bytes": 1000}
        return {**limits, "session_id": 0, "session_epoch": -1, "topics": topics, **more}

    c.error("a leader that is away", **of(ELSEWHERE))
    c.error("a leader that is away, with its epoch", **of(ELSEWHERE, epoch=0))
    c.error("one here, one elsewhere", **of("here", ELSEWHERE))
    c.error("a session", **of("here", ELSEWHERE, session_epoch=0))
    c.any("from the nearest replica", **of(ELSEWHERE, rack_id="rack-a"))
    replica = {"replica_id": 2, "replica_state": {"replica_id": 2, "replica_epoch": 1}}
    c.any("as the broker that is away", **of("here", **replica))
    c.ok("a leader that is here", **of("here"))


@script(LIST_OFFSETS, AWAY, after_another=True)
def list_offsets_elsewhere(c: Conversation) -> None:
    create_topic(c, "here")

    def of(*names: str) -> dict[str, Any]:
        row = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        return {"replica_id": -1, "timeout": 1000, "topics": [{"name": name, "partitions": [row]} for name in names]}

    c.error("a leader that is away", **of(ELSEWHERE))
    c.error("one here, one elsewhere", **of("here", ELSEWHERE))
    c.ok("a leader that is here", **of("here"))


@script(DELETE_RECORDS, AWAY, after_another=True)
def delete_records_elsewhere(c: Conversation) -> None:
    rows = [{"partition_index": 0, "offset": 0}]
    c.error("a leader that is away", topics=[{"name": ELSEWHERE, "partitions": rows}], timeout=1000)


@script(OFFSET_FOR_LEADER_EPOCH, AWAY, after_another=True)
def offset_for_leader_epoch_elsewhere(c: Conversation) -> None:
    rows = [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]
    c.error("a leader that is away", replica_id=-1, topics=[{"topic": ELSEWHERE, "partitions": rows}])


@script(DESCRIBE_PRODUCERS, AWAY, after_another=True)
def describe_producers_elsewhere(c: Conversation) -> None:
    c.error("a leader that is away", topics=[{"name": ELSEWHERE, "partition_indexes": [0]}])


@script(WRITE_TXN_MARKERS, AWAY, after_another=True)
def write_txn_markers_elsewhere(c: Conversation) -> None:
    topics = [{"name": ELSEWHERE, "partition_indexes": [0]}]
    marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "topics": topics}
    c.error("a leader that is away", markers=[{**marker, "coordinator_epoch": 0}])


# What any broker answers


@script(METADATA, AWAY, after_another=True)
def metadata_elsewhere(c: Conversation) -> None:
    create_topic(c, "here")
    names = {"allow_auto_topic_creation": False}
    c.any("all topics", **names, topics=[] if c.version < 1 else None)
    c.any("a leader that is away", **names, topics=[{"name": ELSEWHERE}])
    c.any("one here, one elsewhere", **names, topics=[{"name": "here"}, {"name": ELSEWHERE}])


@script(DESCRIBE_TOPIC_PARTITIONS, AWAY, after_another=True)
def describe_topic_partitions_elsewhere(c: Conversation) -> None:
    c.any("a leader that is away", topics=[{"name": ELSEWHERE}], response_partition_limit=100, cursor=None)


@script(DESCRIBE_CLUSTER, AWAY, after_another=True)
def describe_cluster_elsewhere(c: Conversation) -> None:
    c.ok("brokers", endpoint_type=1)
    c.ok("fenced ones too", endpoint_type=1, include_fenced_brokers=True)


@script(DESCRIBE_QUORUM, AWAY, after_another=True)
def describe_quorum_elsewhere(c: Conversation) -> None:
    c.ok("the quorum", topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}])


@script(UNREGISTER_BROKER, AWAY, after_another=True)
def unregister_broker_elsewhere(c: Conversation) -> None:
    c.error("it holds replicas", broker_id=2)
    for topic in (ELSEWHERE, "__consumer_offsets", "__transaction_state"):
        delete_topic(c, topic)
    c.ok("it holds nothing", broker_id=2)
    c.error("it is gone", broker_id=2)


@script(CREATE_TOPICS, AWAY, after_another=True)
def create_topics_elsewhere(c: Conversation) -> None:
    def of(partitions: int, factor: int, *replicas: int) -> dict[str, Any]:
        assignments = [{"partition_index": 0, "broker_ids": list(replicas)}] if replicas else []
        topic = {"name": "t", "num_partitions": partitions, "replication_factor": factor, "assignments": assignments}
        return {"topics": [topic], "timeout": 1000, "validate_only": True}

    c.any("a replica on each broker", **of(1, 2))
    c.any("assigned to the broker that is away", **of(-1, -1, 1, 2))


@script(CREATE_PARTITIONS, AWAY, after_another=True)
def create_partitions_elsewhere(c: Conversation) -> None:
    def of(name: str, *assignments: list[int]) -> dict[str, Any]:
        rows = [{"broker_ids": one} for one in assignments] or None
        return {"topics": [{"name": name, "count": 3, "assignments": rows}], "timeout": 1000, "validate_only": False}

    c.any("on the broker that is away", **of(ELSEWHERE, [2]))
    c.any("one more", **of(ELSEWHERE))


@script(DELETE_TOPICS, AWAY, after_another=True)
def delete_topics_elsewhere(c: Conversation) -> None:
    c.any("a leader that is away", topic_names=[ELSEWHERE], topics=[{"name": ELSEWHERE}], timeout=1000)


@script(DESCRIBE_LOG_DIRS, AWAY, after_another=True)
def describe_log_dirs_elsewhere(c: Conversation) -> None:
    c.any("a replica that is elsewhere", topics=[{"topic": ELSEWHERE, "partitions": [0]}])


@script(ALTER_REPLICA_LOG_DIRS, AWAY, after_another=True)
def alter_replica_log_dirs_elsewhere(c: Conversation) -> None:
    topics = [{"name": ELSEWHERE, "partitions": [0]}]
    c.any("a replica that is elsewhere", dirs=[{"path": DATA_DIR, "topics": topics}])


@script(ELECT_LEADERS, AWAY, after_another=True)
def elect_leaders_elsewhere(c: Conversation) -> None:
    topics = [{"topic": ELSEWHERE, "partitions": [0]}]
    c.any("the preferred one is away", election_type=0, topic_partitions=topics, timeout=1000)
    c.any("unclean", election_type=1, topic_partitions=topics, timeout=1000)
    c.any("all partitions", election_type=0, topic_partitions=None, timeout=1000)


@script(ALTER_PARTITION_REASSIGNMENTS, AWAY, after_another=True)
def alter_partition_reassignments_elsewhere(c: Conversation) -> None:
    create_topic(c, "here")

    def of(topic: str, replicas: list[int] | None, **more: Any) -> dict[str, Any]:
        rows = [{"partition_index": 0, "replicas": replicas}]
        return {"timeout": 1000, "topics": [{"name": topic, "partitions": rows}], **more}

    c.error("to the broker that is away", **of("here", [2]))
    c.ok("from the broker that is away", **of(ELSEWHERE, [1]))
    c.ok("the same again", **of(ELSEWHERE, [1]))
    c.ok("cancelled", **of(ELSEWHERE, None))
    c.error("cancelled again", **of(ELSEWHERE, None))
    c.any("another number of replicas", **of(ELSEWHERE, [1, 2], allow_replication_factor_change=False))


@script(LIST_PARTITION_REASSIGNMENTS, AWAY, after_another=True)
def list_partition_reassignments_elsewhere(c: Conversation) -> None:
    rows = [{"partition_index": 1, "replicas": [1]}]
    c.arrange(ALTER_PARTITION_REASSIGNMENTS, 0, topics=[{"name": ELSEWHERE, "partitions": rows}], timeout=1000)
    c.ok("one under way", timeout=1000, topics=None)
    c.ok("one of two partitions", timeout=1000, topics=[{"name": ELSEWHERE, "partition_indexes": [0, 1]}])
    c.ok("the other partition", timeout=1000, topics=[{"name": ELSEWHERE, "partition_indexes": [0]}])


@script(DESCRIBE_CONFIGS, AWAY, after_another=True)
def describe_configs_elsewhere(c: Conversation) -> None:
    rows = [{"resource_type": BROKER, "resource_name": "2", "configuration_keys": ["num.partitions"]}]
    c.error("of the broker that is away", resources=rows, include_synonyms=False)


@script(INCREMENTAL_ALTER_CONFIGS, AWAY, after_another=True)
def incremental_alter_configs_elsewhere(c: Conversation) -> None:
    configs = [{"name": "log.retention.ms", "config_operation": 0, "value": "100000"}]
    rows = [{"resource_type": BROKER, "resource_name": "2", "configs": configs}]
    c.any("of the broker that is away", resources=rows, validate_only=False)


@script(LIST_CONFIG_RESOURCES, AWAY, after_another=True)
def list_config_resources_elsewhere(c: Conversation) -> None:
    c.ok("all", resource_types=[])


# What the coordinator answers

MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1}
OWNER = {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0}
OFFSETS = [{"name": "here", "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
NOBODYS = "a coordinator that is away"


@script(FIND_COORDINATOR, AWAY, after_another=True)
def find_coordinator_elsewhere(c: Conversation) -> None:
    c.any(NOBODYS, wait_ms=2000, key="g", key_type=0, coordinator_keys=["g"])
    c.any(f"{NOBODYS}, of transactions", wait_ms=2000, key="tx", key_type=1, coordinator_keys=["tx"])


@script(JOIN_GROUP, AWAY, after_another=True)
def join_group_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, group_id="g", session_timeout=30_000, protocol_type="consumer", protocols=PROTOCOLS)


@script(SYNC_GROUP, AWAY, after_another=True)
def sync_group_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, **MEMBER, assignments=[])


@script(HEARTBEAT, AWAY, after_another=True)
def heartbeat_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, **MEMBER)
    c.error(f"{NOBODYS}, repeated", **MEMBER)


@script(LEAVE_GROUP, AWAY, after_another=True)
def leave_group_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, group_id="g", member_id="m", members=[{"member_id": "m"}])


@script(DESCRIBE_GROUPS, AWAY, after_another=True)
def describe_groups_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, groups=["g", "h"])


@script(LIST_GROUPS, AWAY, after_another=True)
def list_groups_elsewhere(c: Conversation) -> None:
    c.any(NOBODYS)


@script(DELETE_GROUPS, AWAY, after_another=True)
def delete_groups_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, groups_names=["g", "h"])


@script(CONSUMER_GROUP_HEARTBEAT, AWAY, after_another=True)
def consumer_group_heartbeat_elsewhere(c: Conversation) -> None:
    fields = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["here"], "topic_partitions": []}
    c.error(NOBODYS, group_id="g", member_id="m", member_epoch=0, **fields)


@script(CONSUMER_GROUP_DESCRIBE, AWAY, after_another=True)
def consumer_group_describe_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, group_ids=["g", "h"])


@script(OFFSET_COMMIT, AWAY, after_another=True)
def offset_commit_elsewhere(c: Conversation) -> None:
    ids = topic_ids(c)
    topics = [{**OFFSETS[0], "topic_id": ids["here"]}]
    c.error(NOBODYS, group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    c.error(f"{NOBODYS}, repeated", group_id="g", generation_id_or_member_epoch=-1, topics=topics)


@script(OFFSET_FETCH, AWAY, after_another=True)
def offset_fetch_elsewhere(c: Conversation) -> None:
    ids = topic_ids(c)
    asked = {"group_id": "g", "topics": [{"name": "here", "topic_id": ids["here"], "partition_indexes": [0]}]}
    c.any(NOBODYS, **(asked if c.version < 8 else {"groups": [asked]}))


@script(OFFSET_DELETE, AWAY, after_another=True)
def offset_delete_elsewhere(c: Conversation) -> None:
    create_topic(c, "here")
    c.error(NOBODYS, group_id="g", topics=[{"name": "here", "partitions": [{"partition_index": 0}]}])


@script(INIT_PRODUCER_ID, AWAY, after_another=True)
def init_producer_id_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, transactional_id="tx", transaction_timeout=1000, producer_id=-1, producer_epoch=-1)
    c.ok("idempotent", transactional_id=None, transaction_timeout=1000, producer_id=-1, producer_epoch=-1)


@script(ADD_PARTITIONS_TO_TXN, AWAY, after_another=True)
def add_partitions_to_txn_elsewhere(c: Conversation) -> None:
    create_topic(c, "here")
    transaction = {**OWNER, "verify_only": False, "topics": [{"name": "here", "partitions": [0]}]}
    if c.version >= 4:
        c.error(NOBODYS, transactions=[transaction])
    else:
        c.error(NOBODYS, **{f"v3_and_below_{key}": one for key, one in transaction.items() if key != "verify_only"})


@script(ADD_OFFSETS_TO_TXN, AWAY, after_another=True)
def add_offsets_to_txn_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, **OWNER, group_id="g")


@script(END_TXN, AWAY, after_another=True)
def end_txn_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, **OWNER, committed=True)


@script(TXN_OFFSET_COMMIT, AWAY, after_another=True)
def txn_offset_commit_elsewhere(c: Conversation) -> None:
    create_topic(c, "here")
    c.error(NOBODYS, **OWNER, group_id="g", topics=OFFSETS, wait_ms=2000)


@script(DESCRIBE_TRANSACTIONS, AWAY, after_another=True)
def describe_transactions_elsewhere(c: Conversation) -> None:
    c.error(NOBODYS, transactional_ids=["tx", "other"])


@script(LIST_TRANSACTIONS, AWAY, after_another=True)
def list_transactions_elsewhere(c: Conversation) -> None:
    c.any(NOBODYS, state_filters=[], producer_id_filters=[])
