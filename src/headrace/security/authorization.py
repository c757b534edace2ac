"""Authorization: principals, resources, operations, and the table of what each API checks.

Handlers get their checks through `access_for`, which raises for a check that the table does not contain: an
incomplete table fails the handler's own test. The decision itself is an Authorizer's. Numbers are Kafka's, since they
appear in ACL requests and in the bit fields of authorized operations.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from headrace.model.errors import ErrorCode

CLUSTER_NAME = "kafka-cluster"  # Kafka's name of the cluster resource


class Principal(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Access(NamedTuple):
    resource: ResourceType
    operation: Operation


_TOPIC_READ = Access(ResourceType.TOPIC, Operation.READ)
_TOPIC_WRITE = Access(ResourceType.TOPIC, Operation.WRITE)
_TOPIC_CREATE = Access(ResourceType.TOPIC, Operation.CREATE)
_TOPIC_DELETE = Access(ResourceType.TOPIC, Operation.DELETE)
_TOPIC_ALTER = Access(ResourceType.TOPIC, Operation.ALTER)
_TOPIC_DESCRIBE = Access(ResourceType.TOPIC, Operation.DESCRIBE)
_TOPIC_DESCRIBE_CONFIGS = Access(ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)
_TOPIC_ALTER_CONFIGS = Access(ResourceType.TOPIC, Operation.ALTER_CONFIGS)
_GROUP_READ = Access(ResourceType.GROUP, Operation.READ)
_GROUP_DELETE = Access(ResourceType.GROUP, Operation.DELETE)
_GROUP_DESCRIBE = Access(ResourceType.GROUP, Operation.DESCRIBE)
_GROUP_DESCRIBE_CONFIGS = Access(ResourceType.GROUP, Operation.DESCRIBE_CONFIGS)
_GROUP_ALTER_CONFIGS = Access(ResourceType.GROUP, Operation.ALTER_CONFIGS)
_CLUSTER_CREATE = Access(ResourceType.CLUSTER, Operation.CREATE)
_CLUSTER_ALTER = Access(ResourceType.CLUSTER, Operation.ALTER)
_CLUSTER_DESCRIBE = Access(ResourceType.CLUSTER, Operation.DESCRIBE)
_CLUSTER_ACTION = Access(ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
_CLUSTER_DESCRIBE_CONFIGS = Access(ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)
_CLUSTER_ALTER_CONFIGS = Access(ResourceType.CLUSTER, Operation.ALTER_CONFIGS)
_CLUSTER_IDEMPOTENT_WRITE = Access(ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE)
_TRANSACTIONAL_ID_WRITE = Access(ResourceType.TRANSACTIONAL_ID, Operation.WRITE)
_TRANSACTIONAL_ID_DESCRIBE = Access(ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)

# API key → every check that its handler may make. An empty row is an API without authorization, on purpose.
TABLE: Mapping[int, frozenset[Access]] = {
    0: frozenset({_TOPIC_WRITE, _TRANSACTIONAL_ID_WRITE}),  # Produce
    1: frozenset({_TOPIC_READ, _CLUSTER_ACTION}),  # Fetch; the second is for replicas
    2: frozenset({_TOPIC_DESCRIBE}),  # ListOffsets
    3: frozenset({_TOPIC_DESCRIBE, _TOPIC_CREATE, _CLUSTER_CREATE, _CLUSTER_DESCRIBE}),  # Metadata
    8: frozenset({_GROUP_READ, _TOPIC_READ}),  # OffsetCommit
    9: frozenset({_GROUP_DESCRIBE, _TOPIC_DESCRIBE}),  # OffsetFetch
    10: frozenset({_GROUP_DESCRIBE, _TRANSACTIONAL_ID_DESCRIBE}),  # FindCoordinator
    11: frozenset({_GROUP_READ}),  # JoinGroup
    12: frozenset({_GROUP_READ}),  # Heartbeat
    13: frozenset({_GROUP_READ}),  # LeaveGroup
    14: frozenset({_GROUP_READ}),  # SyncGroup
    15: frozenset({_GROUP_DESCRIBE}),  # DescribeGroups
    16: frozenset({_CLUSTER_DESCRIBE, _GROUP_DESCRIBE}),  # ListGroups
    18: frozenset(),  # ApiVersions: sent before a client can authenticate
    19: frozenset({_CLUSTER_CREATE, _TOPIC_CREATE, _TOPIC_DESCRIBE_CONFIGS}),  # CreateTopics
    20: frozenset({_TOPIC_DELETE, _TOPIC_DESCRIBE}),  # DeleteTopics
    21: frozenset({_TOPIC_DELETE}),  # DeleteRecords
    22: frozenset({_CLUSTER_IDEMPOTENT_WRITE, _TOPIC_WRITE, _TRANSACTIONAL_ID_WRITE}),  # InitProducerId
    23: frozenset({_TOPIC_DESCRIBE, _CLUSTER_ACTION}),  # OffsetForLeaderEpoch
    24: frozenset({_TRANSACTIONAL_ID_WRITE, _TOPIC_WRITE, _CLUSTER_ACTION}),  # AddPartitionsToTxn
    25: frozenset({_TRANSACTIONAL_ID_WRITE, _GROUP_READ}),  # AddOffsetsToTxn
    26: frozenset({_TRANSACTIONAL_ID_WRITE}),  # EndTxn
    27: frozenset({_CLUSTER_ACTION, _CLUSTER_ALTER}),  # WriteTxnMarkers; the second is for administrators
    28: frozenset({_TRANSACTIONAL_ID_WRITE, _GROUP_READ, _TOPIC_READ}),  # TxnOffsetCommit
    29: frozenset({_CLUSTER_DESCRIBE}),  # DescribeAcls
    30: frozenset({_CLUSTER_ALTER}),  # CreateAcls
    31: frozenset({_CLUSTER_ALTER}),  # DeleteAcls
    32: frozenset({_TOPIC_DESCRIBE_CONFIGS, _CLUSTER_DESCRIBE_CONFIGS, _GROUP_DESCRIBE_CONFIGS}),
    33: frozenset({_TOPIC_ALTER_CONFIGS, _CLUSTER_ALTER_CONFIGS, _GROUP_ALTER_CONFIGS}),
    34: frozenset({_CLUSTER_ALTER}),  # AlterReplicaLogDirs
    35: frozenset({_CLUSTER_DESCRIBE}),  # DescribeLogDirs
    37: frozenset({_TOPIC_ALTER}),  # CreatePartitions
    42: frozenset({_GROUP_DELETE}),  # DeleteGroups
    43: frozenset({_CLUSTER_ALTER}),  # ElectLeaders
    44: frozenset({_TOPIC_ALTER_CONFIGS, _CLUSTER_ALTER_CONFIGS, _GROUP_ALTER_CONFIGS}),
    45: frozenset({_CLUSTER_ALTER}),  # AlterPartitionReassignments
    46: frozenset({_CLUSTER_DESCRIBE}),  # ListPartitionReassignments
    47: frozenset({_GROUP_DELETE, _TOPIC_READ}),  # OffsetDelete
    55: frozenset({_CLUSTER_DESCRIBE}),  # DescribeQuorum
    57: frozenset({_CLUSTER_ALTER}),  # UpdateFeatures
    60: frozenset({_CLUSTER_DESCRIBE}),  # DescribeCluster: only for the cluster's authorized operations
    61: frozenset({_TOPIC_READ}),  # DescribeProducers
    64: frozenset({_CLUSTER_ALTER}),  # UnregisterBroker
    65: frozenset({_TRANSACTIONAL_ID_DESCRIBE, _TOPIC_DESCRIBE}),  # DescribeTransactions
    66: frozenset({_TRANSACTIONAL_ID_DESCRIBE}),  # ListTransactions
    68: frozenset({_GROUP_READ, _TOPIC_DESCRIBE}),  # ConsumerGroupHeartbeat
    69: frozenset({_GROUP_DESCRIBE, _TOPIC_DESCRIBE}),  # ConsumerGroupDescribe
    74: frozenset({_CLUSTER_DESCRIBE_CONFIGS}),  # ListConfigResources
    75: frozenset({_TOPIC_DESCRIBE}),  # DescribeTopicPartitions
}

# Error codes of denied requests.
DENIED: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

# Operations that apply to a resource type: the bits of the field of authorized operations.
OPERATIONS_OF: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}


class Authorizer(Protocol):
    """Interface of authorizers."""

    @property
    def is_open(self) -> bool:
        """Returns whether everything is allowed.

        Checked first, so that ten thousand names need not be checked one by one.
        """

    def allows(self, principal: Principal, host: str, access: Access, name: str) -> bool:
        """Returns whether this principal may, from this host, access the resource of this name."""

    def allows_some(self, principal: Principal, host: str, access: Access) -> bool:
        """Returns whether this principal may access any resource of the type."""


class AllowAll:
    """The authorizer of a broker without access control."""

    is_open = True

    def allows(self, principal: Principal, host: str, access: Access, name: str) -> bool:
        return True

    def allows_some(self, principal: Principal, host: str, access: Access) -> bool:
        return True


def access_for(api: int, resource: ResourceType, operation: Operation) -> Access:
    """Returns the check. Raises if the table does not list it for this API."""
    access = Access(resource, operation)
    assert access in TABLE[api], f"API {api} asks for {operation.name} on {resource.name}: not in the table"
    return access


def authorized_operations(
    authorizer: Authorizer, principal: Principal, host: str, resource: ResourceType, name: str
) -> int:
    """Returns the operations that the principal may perform on a resource, one bit for each operation's number."""
    bits = 0
    for operation in OPERATIONS_OF[resource]:
        if authorizer.allows(principal, host, Access(resource, operation), name):
            bits |= 1 << operation
    return bits
