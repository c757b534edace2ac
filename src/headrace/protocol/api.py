"""The served APIs and versions. ApiVersions advertises them and request dispatch enforces them."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    # avoids the enum's own hash, a Python function: every request is looked up in several tables
    __hash__ = int.__hash__

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75

    @property
    def label(self) -> str:
        """The name as Kafka writes it: ListOffsets."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class Versions(NamedTuple):
    lowest: int
    highest: int
    first_flexible: int  # from this version on: compact lengths, tagged fields, and a tagged request header
    advertised_lowest: int


def _versions(lowest: int, highest: int, first_flexible: int, advertised_lowest: int | None = None) -> Versions:
    return Versions(lowest, highest, first_flexible, lowest if advertised_lowest is None else advertised_lowest)


SERVED: Mapping[ApiKey, Versions] = {
    # librdkafka silently turns compression off unless Produce is advertised from 0; versions 0-2 are rejected.
    ApiKey.PRODUCE: _versions(3, 13, 9, advertised_lowest=0),
    ApiKey.FETCH: _versions(4, 18, 12),
    ApiKey.LIST_OFFSETS: _versions(1, 11, 6),
    ApiKey.METADATA: _versions(0, 13, 9),
    ApiKey.OFFSET_COMMIT: _versions(2, 10, 8),
    ApiKey.OFFSET_FETCH: _versions(1, 10, 6),
    ApiKey.FIND_COORDINATOR: _versions(0, 6, 3),
    ApiKey.JOIN_GROUP: _versions(0, 9, 6),
    ApiKey.HEARTBEAT: _versions(0, 4, 4),
    ApiKey.LEAVE_GROUP: _versions(0, 5, 4),
    ApiKey.SYNC_GROUP: _versions(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: _versions(0, 6, 5),
    ApiKey.LIST_GROUPS: _versions(0, 5, 3),
    ApiKey.API_VERSIONS: _versions(0, 4, 3),
    ApiKey.CREATE_TOPICS: _versions(2, 7, 5),
    ApiKey.DELETE_TOPICS: _versions(1, 6, 4),
    ApiKey.DELETE_RECORDS: _versions(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: _versions(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _versions(2, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: _versions(0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: _versions(0, 4, 3),
    ApiKey.END_TXN: _versions(0, 5, 3),
    ApiKey.WRITE_TXN_MARKERS: _versions(1, 2, 1),
    ApiKey.TXN_OFFSET_COMMIT: _versions(0, 5, 3),
    ApiKey.DESCRIBE_ACLS: _versions(1, 3, 2),
    ApiKey.CREATE_ACLS: _versions(1, 3, 2),
    ApiKey.DELETE_ACLS: _versions(1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: _versions(1, 4, 4),
    ApiKey.ALTER_CONFIGS: _versions(0, 2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _versions(1, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _versions(1, 5, 2),
    ApiKey.CREATE_PARTITIONS: _versions(0, 3, 2),
    ApiKey.DELETE_GROUPS: _versions(0, 2, 2),
    ApiKey.ELECT_LEADERS: _versions(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _versions(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _versions(0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _versions(0, 0, 0),
    ApiKey.OFFSET_DELETE: _versions(0, 0, 1),
    ApiKey.DESCRIBE_QUORUM: _versions(0, 2, 0),
    ApiKey.UPDATE_FEATURES: _versions(0, 2, 0),
    ApiKey.DESCRIBE_CLUSTER: _versions(0, 2, 0),
    ApiKey.DESCRIBE_PRODUCERS: _versions(0, 0, 0),
    ApiKey.UNREGISTER_BROKER: _versions(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: _versions(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: _versions(0, 2, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _versions(0, 1, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _versions(0, 1, 0),
    ApiKey.LIST_CONFIG_RESOURCES: _versions(0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _versions(0, 0, 0),
}


def request_header_version(api: ApiKey, version: int) -> int:
    return 2 if version >= SERVED[api].first_flexible else 1


def response_header_version(api: ApiKey, version: int) -> int:
    """Returns the version of the response header.

    ApiVersions uses the oldest: the client has not received the versions yet.
    """
    if api is ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= SERVED[api].first_flexible else 0
