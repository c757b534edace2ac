"""Registry of handler modules by API. A handler is imported at the first request of its API.

The request pipeline calls Produce and Fetch directly. Every other API has a function `handle_<api>(request, context)`
in the module named here.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from headrace.protocol.api import ApiKey

_HANDLERS = "headrace.broker.handlers"
HANDLER_MODULES = {
    ApiKey.PRODUCE: "data.produce",
    ApiKey.FETCH: "data.fetch",
    ApiKey.LIST_OFFSETS: "data.list_offsets",
    ApiKey.DELETE_RECORDS: "data.partition_admin",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "data.partition_admin",
    ApiKey.DESCRIBE_PRODUCERS: "data.partition_admin",
    ApiKey.API_VERSIONS: "cluster.api_versions",
    ApiKey.METADATA: "cluster.metadata",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "cluster.describe_topic_partitions",
    ApiKey.FIND_COORDINATOR: "cluster.find_coordinator",
    ApiKey.DESCRIBE_CLUSTER: "cluster.cluster_admin",
    ApiKey.DESCRIBE_QUORUM: "cluster.cluster_admin",
    ApiKey.UNREGISTER_BROKER: "cluster.cluster_admin",
    ApiKey.UPDATE_FEATURES: "cluster.cluster_admin",
    ApiKey.CREATE_TOPICS: "admin.create_topics",
    ApiKey.DELETE_TOPICS: "admin.topics",
    ApiKey.CREATE_PARTITIONS: "admin.topics",
    ApiKey.DESCRIBE_CONFIGS: "admin.describe_configs",
    ApiKey.LIST_CONFIG_RESOURCES: "admin.describe_configs",
    ApiKey.ALTER_CONFIGS: "admin.alter_configs",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "admin.alter_configs",
    ApiKey.CREATE_ACLS: "admin.acls",
    ApiKey.DELETE_ACLS: "admin.acls",
    ApiKey.DESCRIBE_ACLS: "admin.acls",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "admin.reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "admin.reassignments",
    ApiKey.ELECT_LEADERS: "admin.reassignments",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "admin.log_dirs",
    ApiKey.DESCRIBE_LOG_DIRS: "admin.log_dirs",
    ApiKey.JOIN_GROUP: "group.classic_groups",
    ApiKey.SYNC_GROUP: "group.classic_groups",
    ApiKey.HEARTBEAT: "group.classic_groups",
    ApiKey.LEAVE_GROUP: "group.classic_groups",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "group.consumer_groups",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "group.consumer_groups",
    ApiKey.DESCRIBE_GROUPS: "group.group_admin",
    ApiKey.LIST_GROUPS: "group.group_admin",
    ApiKey.DELETE_GROUPS: "group.group_admin",
    ApiKey.OFFSET_DELETE: "group.group_admin",
    ApiKey.OFFSET_COMMIT: "group.offset_commit",
    ApiKey.OFFSET_FETCH: "group.offset_fetch",
    ApiKey.INIT_PRODUCER_ID: "transaction.init_producer_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transaction.transactions",
    ApiKey.ADD_OFFSETS_TO_TXN: "transaction.transactions",
    ApiKey.END_TXN: "transaction.transactions",
    ApiKey.TXN_OFFSET_COMMIT: "transaction.transactions",
    ApiKey.DESCRIBE_TRANSACTIONS: "transaction.transaction_admin",
    ApiKey.LIST_TRANSACTIONS: "transaction.transaction_admin",
    ApiKey.WRITE_TXN_MARKERS: "transaction.transaction_admin",
}


def handler_module(api: ApiKey) -> ModuleType:
    return import_module(f"{_HANDLERS}.{HANDLER_MODULES[api]}")


def handler_of(api: ApiKey) -> Callable[[Any, Any], Any]:
    """Returns the function that serves `api`."""
    handler: Callable[[Any, Any], Any] = getattr(handler_module(api), f"handle_{api.name.lower()}")
    return handler
