"""Every served API has a handler, and every handler asks the authorizer before it tells or changes anything."""

from typing import Any

import pytest

from headrace.broker.api.registry import handler_module
from headrace.protocol.api import SERVED, ApiKey
from headrace.security.authorization import TABLE
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

TOPIC_CONFIG = {"resource_type": 2, "resource_name": "t"}

# A request about the topic `t` for every API whose handler asks for permission.
REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.LIST_OFFSETS: {
        "replica_id": -1,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    },
    ApiKey.METADATA: {"topics": [{"name": "t"}]},
    ApiKey.OFFSET_COMMIT: {"group_id": "g", "topics": [{"topic_id": None, "partitions": [{"partition_index": 0}]}]},
    ApiKey.OFFSET_FETCH: {"groups": [{"group_id": "g", "topics": None}]},
    ApiKey.FIND_COORDINATOR: {"coordinator_keys": ("g",)},
    ApiKey.JOIN_GROUP: {"group_id": "g", "session_timeout": 10_000, "protocol_type": "consumer"},
    ApiKey.HEARTBEAT: {"group_id": "g", "member_id": "m", "generation_id": 1},
    ApiKey.LEAVE_GROUP: {"group_id": "g", "members": [{"member_id": "m"}]},
    ApiKey.SYNC_GROUP: {"group_id": "g", "member_id": "m", "generation_id": 1},
    ApiKey.DESCRIBE_GROUPS: {"groups": ("g",)},
    ApiKey.LIST_GROUPS: {},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {"group_id": "g", "member_id": "m", "member_epoch": 1},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": ("g",)},
    ApiKey.CREATE_TOPICS: {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
    ApiKey.DELETE_TOPICS: {"topics": [{"name": "t"}]},
    ApiKey.DELETE_RECORDS: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]},
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": None},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "transactions": [
            {
                "transactional_id": "x",
                "producer_id": 1,
                "producer_epoch": 0,
                "topics": [{"name": "t", "partitions": (0,)}],
            }
        ]
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": "g"},
    ApiKey.END_TXN: {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "committed": True},
    ApiKey.WRITE_TXN_MARKERS: {
        "markers": [{"producer_id": 1, "producer_epoch": 0, "topics": [{"name": "t", "partition_indexes": (0,)}]}]
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        "transactional_id": "x",
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    ApiKey.UNREGISTER_BROKER: {"broker_id": 9},
    ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": ("x",)},
    ApiKey.LIST_TRANSACTIONS: {},
    ApiKey.DESCRIBE_ACLS: {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
    ApiKey.CREATE_ACLS: {"creations": [{"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*"}]},
    ApiKey.DELETE_ACLS: {"filters": [{"resource_type_filter": 1, "pattern_type_filter": 1}]},
    ApiKey.DESCRIBE_CONFIGS: {"resources": [TOPIC_CONFIG]},
    ApiKey.ALTER_CONFIGS: {"resources": [{**TOPIC_CONFIG, "configs": [{"name": "retention.ms", "value": "1"}]}]},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [{**TOPIC_CONFIG, "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}]}]
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: {"dirs": [{"path": "/data", "topics": [{"name": "t", "partitions": (0,)}]}]},
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
    ApiKey.CREATE_PARTITIONS: {"topics": [{"name": "t", "count": 9, "assignments": None}]},
    ApiKey.DELETE_GROUPS: {"groups_names": ("g",)},
    ApiKey.OFFSET_DELETE: {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
    ApiKey.ELECT_LEADERS: {"topic_partitions": [{"topic": "t", "partitions": (0,)}]},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": (1,)}]}]
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None},
    ApiKey.DESCRIBE_QUORUM: {"topics": ()},
    ApiKey.UPDATE_FEATURES: {"feature_updates": [{"feature": "group.version", "max_version_level": 1}]},
    ApiKey.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
    ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": "t", "partition_indexes": (0,)}]},
    ApiKey.LIST_CONFIG_RESOURCES: {},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "t"}]},
}


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_rule_03_what_is_advertised_has_a_handler(api: ApiKey) -> None:
    handler = handler_module(api)
    assert hasattr(handler, f"handle_{api.name.lower()}") or api in (ApiKey.PRODUCE, ApiKey.FETCH)


def test_every_handler_that_asks_for_permission_is_tested() -> None:
    asking = {api for api in SERVED if TABLE[api]} - {ApiKey.PRODUCE, ApiKey.FETCH}
    assert set(REQUESTS) == asking


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
async def test_a_denied_caller_changes_nothing(kit: HandlerKit, api: ApiKey) -> None:
    await kit.create("t")
    kit.append("t", "a", "b")
    if api is ApiKey.LIST_TRANSACTIONS:  # asks about each that there is
        await kit.transactions.leader_of("x")
        await kit.transactions.init_producer_id("x", 60_000, None)
    authorizer = kit.authorizer = DenyAll()
    before = (dict(kit.image.topics), kit.partition("t").log_start_offset)
    await kit.ask(api, **REQUESTS[api])
    assert authorizer.asked, "the authorizer was asked"
    assert authorizer.asked <= TABLE[api]
    assert (dict(kit.image.topics), kit.partition("t").log_start_offset) == before
