"""Some names are denied and others are not, in one request: each row has an answer of its own."""

from collections.abc import Callable
from typing import Any

from tests.golden.batches import batch
from tests.golden.conversation import Conversation, Script
from tests.golden.scripts.common import (
    ADD_PARTITIONS_TO_TXN,
    ALTER_CONFIGS,
    CONSUMER_GROUP_DESCRIBE,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    FETCH,
    FIND_COORDINATOR,
    GROUP,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    TOPIC,
    TXN_OFFSET_COMMIT,
    UNKNOWN_ID,
    add_partitions,
    commit_offset,
    create_topic,
    delete_topic,
    find_coordinator,
    init_producer,
    join_consumer_group,
    join_group,
    script,
)

OPEN, SECRET, MISSING_SECRET = "open", "secret", "missing-secret"
NAMES = (OPEN, SECRET, MISSING_SECRET)

Fields = dict[str, Any]


class Arranged:
    """Topics, groups and transactional ids, one of each that is denied."""

    def __init__(self, c: Conversation) -> None:
        self.ids = {name: create_topic(c, name) for name in (OPEN, SECRET)}
        self.ids[MISSING_SECRET] = UNKNOWN_ID

    def rows(self, key: str, row: Any, topic: str = "name", *, with_ids: bool = False) -> list[Fields]:
        return [{topic: name, key: [row], **({"topic_id": self.ids[name]} if with_ids else {})} for name in NAMES]


def some_names(api: int) -> Callable[[Callable[[Conversation, Arranged], Fields]], Script]:
    """The decorated function arranges what it needs and returns the request."""

    def register(request: Callable[[Conversation, Arranged], Fields]) -> Script:
        @script(api, "some names are denied")
        def run(c: Conversation) -> None:
            fields = request(c, Arranged(c))
            c.broker.deny(names=[SECRET, MISSING_SECRET])
            c.any("some names are denied", **fields)
            c.any("some names are denied, repeated", **fields)
            c.broker.allow_everything()

        return run

    return register


@some_names(PRODUCE)
def produce_script(c: Conversation, arranged: Arranged) -> Fields:
    topics = arranged.rows("partition_data", {"index": 0, "records": batch("a")}, with_ids=True)
    return {"acks": -1, "timeout": 1000, "topic_data": topics}


@some_names(FETCH)
def fetch_script(c: Conversation, arranged: Arranged) -> Fields:
    row = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, "log_start_offset": -1}
    row |= {"partition_max_bytes": 1000, "last_fetched_epoch": -1}
    limits = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1000}
    return {**limits, "session_epoch": 0, "topics": arranged.rows("partitions", row, "topic", with_ids=True)}


@some_names(LIST_OFFSETS)
def list_offsets_script(c: Conversation, arranged: Arranged) -> Fields:
    row = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    return {"replica_id": -1, "topics": arranged.rows("partitions", row)}


@some_names(METADATA)
def metadata_script(c: Conversation, arranged: Arranged) -> Fields:
    by_name = [{"name": name} for name in NAMES]
    by_id = [{"topic_id": topic_id, "name": None} for topic_id in arranged.ids.values()]
    more = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    return {"topics": by_name + (by_id if c.version >= 10 else []), "allow_auto_topic_creation": True, **more}


@script(METADATA, "some names of all are denied")
def all_metadata_script(c: Conversation) -> None:
    Arranged(c)
    c.broker.deny(names=[SECRET])
    c.any("all topics", topics=[] if c.version < 1 else None)


@some_names(OFFSET_COMMIT)
def offset_commit_script(c: Conversation, arranged: Arranged) -> Fields:
    find_coordinator(c, "g")
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "topics": arranged.rows("partitions", row, with_ids=True),
    }


@some_names(OFFSET_FETCH)
def offset_fetch_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        commit_offset(c, "g", name, 7)
    asked = {"group_id": "g", "topics": arranged.rows("partition_indexes", 0, with_ids=True)}
    if c.version < 8:
        return asked
    return {"groups": [asked, {"group_id": SECRET, "topics": None}, {"group_id": "g", "topics": None}]}


@some_names(FIND_COORDINATOR)
def find_coordinator_script(c: Conversation, arranged: Arranged) -> Fields:
    find_coordinator(c, "g")
    return {"key": SECRET, "key_type": 0, "coordinator_keys": ["g", SECRET]}


@some_names(DESCRIBE_GROUPS)
def describe_groups_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        join_group(c, name)
    return {"groups": list(NAMES), "include_authorized_operations": True}


@some_names(LIST_GROUPS)
def list_groups_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        join_group(c, name)
    return {}


@script(LIST_GROUPS, "some groups and the cluster are denied")
def list_some_groups_script(c: Conversation) -> None:
    for name in (OPEN, SECRET):
        join_group(c, name)
    c.broker.deny(names=[SECRET, "kafka-cluster"])
    c.any("only one is shown")


@some_names(DELETE_GROUPS)
def delete_groups_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        commit_offset(c, name, OPEN, 1)
    return {"groups_names": list(NAMES)}


@some_names(CREATE_TOPICS)
def create_topics_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        delete_topic(c, name)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in NAMES]
    return {"topics": topics, "timeout": 1000, "validate_only": True}


@script(CREATE_TOPICS, "some topics and the cluster are denied")
def create_some_topics_script(c: Conversation) -> None:
    c.broker.deny(names=[SECRET, "kafka-cluster"])
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (OPEN, SECRET)]
    c.any("one is created", topics=topics, timeout=1000, validate_only=False)


@some_names(DELETE_TOPICS)
def delete_topics_script(c: Conversation, arranged: Arranged) -> Fields:
    by_id = [{"name": None, "topic_id": topic_id} for topic_id in arranged.ids.values()]
    by_name = [{"name": name} for name in (SECRET, MISSING_SECRET)]
    return {"topic_names": list(NAMES), "topics": by_id + by_name, "timeout": 1000}


@some_names(CREATE_PARTITIONS)
def create_partitions_script(c: Conversation, arranged: Arranged) -> Fields:
    topics = [{"name": name, "count": 5, "assignments": None} for name in NAMES]
    return {"topics": topics, "timeout": 1000, "validate_only": True}


@some_names(DELETE_RECORDS)
def delete_records_script(c: Conversation, arranged: Arranged) -> Fields:
    return {"topics": arranged.rows("partitions", {"partition_index": 0, "offset": 0}), "timeout": 1000}


@some_names(OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch_script(c: Conversation, arranged: Arranged) -> Fields:
    row = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    return {"replica_id": -1, "topics": arranged.rows("partitions", row, "topic")}


@some_names(DESCRIBE_PRODUCERS)
def describe_producers_script(c: Conversation, arranged: Arranged) -> Fields:
    return {"topics": arranged.rows("partition_indexes", 0)}


@some_names(DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions_script(c: Conversation, arranged: Arranged) -> Fields:
    return {"topics": [{"name": name} for name in NAMES], "response_partition_limit": 100, "cursor": None}


@some_names(OFFSET_DELETE)
def offset_delete_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        commit_offset(c, "g", name, 7)
    return {"group_id": "g", "topics": arranged.rows("partitions", {"partition_index": 0})}


def configs_of(*changes: Fields) -> Fields:
    """Of topics, of groups and of the broker."""
    kinds = ((TOPIC, OPEN), (TOPIC, SECRET), (TOPIC, MISSING_SECRET), (GROUP, OPEN), (GROUP, SECRET))
    rows = [{"resource_type": kind, "resource_name": name, "configs": list(changes)} for kind, name in kinds]
    return {"resources": [{**row, "configuration_keys": ["retention.ms"]} for row in rows]}


@some_names(DESCRIBE_CONFIGS)
def describe_configs_script(c: Conversation, arranged: Arranged) -> Fields:
    resources = configs_of()["resources"]
    rows = [{key: value for key, value in row.items() if key != "configs"} for row in resources]
    return {"resources": rows, "include_synonyms": False}


@some_names(ALTER_CONFIGS)
def alter_configs_script(c: Conversation, arranged: Arranged) -> Fields:
    resources = configs_of()["resources"]
    rows = [{key: value for key, value in row.items() if key != "configuration_keys"} for row in resources]
    return {"resources": rows, "validate_only": True}


@some_names(INCREMENTAL_ALTER_CONFIGS)
def incremental_alter_configs_script(c: Conversation, arranged: Arranged) -> Fields:
    return alter_configs_fields()


def alter_configs_fields() -> Fields:
    change = {"name": "retention.ms", "config_operation": 1, "value": None}
    resources = configs_of(change)["resources"]
    rows = [{key: value for key, value in row.items() if key != "configuration_keys"} for row in resources]
    return {"resources": rows, "validate_only": True}


@some_names(ADD_PARTITIONS_TO_TXN)
def add_partitions_to_txn_script(c: Conversation, arranged: Arranged) -> Fields:
    producer = init_producer(c, "tx")
    owner = {"transactional_id": "tx", "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    topics = [{"name": name, "partitions": [0]} for name in NAMES]
    transaction = {**owner, "verify_only": False, "topics": topics}
    if c.version >= 4:
        return {"transactions": [transaction, {**transaction, "transactional_id": SECRET}]}
    return {f"v3_and_below_{key}": value for key, value in transaction.items() if key != "verify_only"}


@some_names(TXN_OFFSET_COMMIT)
def txn_offset_commit_script(c: Conversation, arranged: Arranged) -> Fields:
    find_coordinator(c, "g")
    producer = init_producer(c, "tx")
    add_partitions(c, "tx", producer, OPEN, 0)
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    owner = {"transactional_id": "tx", "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    return {**owner, "group_id": "g", "topics": arranged.rows("partitions", row)}


@some_names(DESCRIBE_TRANSACTIONS)
def describe_transactions_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        producer = init_producer(c, name)
        for topic in (OPEN, SECRET):
            add_partitions(c, name, producer, topic, 0)
    return {"transactional_ids": list(NAMES)}


@some_names(LIST_TRANSACTIONS)
def list_transactions_script(c: Conversation, arranged: Arranged) -> Fields:
    for name in (OPEN, SECRET):
        init_producer(c, name)
    return {"state_filters": [], "producer_id_filters": []}


@some_names(CONSUMER_GROUP_DESCRIBE)
def consumer_group_describe_script(c: Conversation, arranged: Arranged) -> Fields:
    join_consumer_group(c, OPEN, OPEN)
    join_consumer_group(c, SECRET, OPEN)
    join_consumer_group(c, "reads-secrets", SECRET)
    return {"group_ids": [OPEN, SECRET, MISSING_SECRET, "reads-secrets"], "include_authorized_operations": True}
