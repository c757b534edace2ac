"""The cluster: ApiVersions, brokers, features, ACLs, log directories, elections and reassignments."""

from struct import pack
from typing import Any

from tests.golden.batches import batch
from tests.golden.broker_under_test import DATA_DIR
from tests.golden.conversation import CLOSES, Conversation
from tests.golden.scripts.common import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    API_VERSIONS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
    create_topic,
    produce,
    script,
)


@script(API_VERSIONS)
def api_versions_script(c: Conversation) -> None:
    def of(name: str = "golden", version: str = "1.0") -> dict[str, Any]:
        return {"client_software_name": name, "client_software_version": version}

    c.ok("first", **of())
    c.ok("repeated", **of())
    c.together("two in one read", of(), of())
    if c.version >= 3:
        c.error("no name", **of(name=""))
        c.error("no version", **of(version=""))
        c.error("a name that cannot be", **of(name="-golden"))
        c.error("a version that cannot be", **of(version="1 0"))
    c.raw("an API that there is not", pack(">hhih", 9999, 0, 1, -1), expects=CLOSES)
    c.raw("a negative API", pack(">hhih", -1, 0, 1, -1), expects=CLOSES)
    c.raw("no header", b"", expects=CLOSES)
    c.raw("half a header", pack(">hh", API_VERSIONS, c.version), expects=CLOSES)
    c.raw("a client id that ends early", pack(">hhih", API_VERSIONS, c.version, 1, 30) + b"short", expects=CLOSES)
    c.raw("a negative client id", pack(">hhih", API_VERSIONS, c.version, 1, -2), expects=CLOSES)
    c.ok("in the end", **of())


@script(DESCRIBE_CLUSTER)
def describe_cluster_script(c: Conversation) -> None:
    c.ok("brokers", endpoint_type=1)
    c.ok("brokers, repeated", endpoint_type=1)
    c.ok("operations", endpoint_type=1, include_cluster_authorized_operations=True)
    c.ok("fenced ones too", endpoint_type=1, include_fenced_brokers=True)
    c.any("controllers", endpoint_type=2)
    c.any("an unknown type", endpoint_type=7)
    c.ok("in the end", endpoint_type=1, include_cluster_authorized_operations=True)


@script(DESCRIBE_QUORUM)
def describe_quorum_script(c: Conversation) -> None:
    def of(name: str, *indexes: int) -> dict[str, Any]:
        return {"topics": [{"topic_name": name, "partitions": [{"partition_index": one} for one in indexes]}]}

    c.ok("the quorum", **of("__cluster_metadata", 0))
    create_topic(c, "t")
    c.ok("after a topic was created", **of("__cluster_metadata", 0))
    c.error("another partition", **of("__cluster_metadata", 0, 1))
    c.error("another topic", **of("t", 0))
    c.ok("no partitions", **of("t"))
    c.ok("in the end", **of("__cluster_metadata", 0))


@script(UPDATE_FEATURES)
def update_features_script(c: Conversation) -> None:
    def of(*updates: tuple[str, int], kind: int = 1, validate_only: bool = False) -> dict[str, Any]:
        rows = [
            {"feature": name, "max_version_level": level, "allow_downgrade": kind != 1, "upgrade_type": kind}
            for name, level in updates
        ]
        return {"timeout": 1000, "feature_updates": rows, "validate_only": validate_only}

    c.ok("what it is already", **of(("transaction.version", 2)))
    c.error("a higher level", **of(("transaction.version", 9)))
    c.error("a lower level", **of(("transaction.version", 1), kind=2))
    c.error("off", **of(("group.version", 0), kind=3))
    c.error("an unknown feature", **of(("what.version", 1)))
    c.error("a good one and bad ones", **of(("transaction.version", 2), ("what.version", 1), ("group.version", 0)))
    c.any("an unknown kind", **of(("transaction.version", 2), kind=9))
    c.error("a negative level", **of(("transaction.version", -1)))
    c.ok("only validated", **of(("transaction.version", 2), validate_only=True))
    c.ok("in the end", **of(("transaction.version", 2), ("group.version", 1)))


@script(UNREGISTER_BROKER)
def unregister_broker_script(c: Conversation) -> None:
    c.error("an unknown broker", broker_id=7)
    c.error("this broker", broker_id=1)
    c.error("a negative one", broker_id=-1)
    c.normal = {"broker_id": 7}


# There is no access control yet: every answer says so.


def acl_filter(**more: Any) -> dict[str, Any]:
    everything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return {**everything, "resource_name_filter": None, "principal_filter": None, "host_filter": None, **more}


@script(DESCRIBE_ACLS)
def describe_acls_script(c: Conversation) -> None:
    c.error("all", **acl_filter())
    c.error("of a topic", **acl_filter(resource_type_filter=2, resource_name_filter="t"))
    c.error("an unknown type", **acl_filter(resource_type_filter=99))
    c.normal = acl_filter()


@script(CREATE_ACLS)
def create_acls_script(c: Conversation) -> None:
    creation = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    c.error("one", creations=[creation])
    c.error("two", creations=[creation, {**creation, "resource_type": 99}])
    c.normal = {"creations": [creation]}


@script(DELETE_ACLS)
def delete_acls_script(c: Conversation) -> None:
    c.error("one", filters=[acl_filter()])
    c.error("two", filters=[acl_filter(), acl_filter(operation=99)])
    c.normal = {"filters": [acl_filter()]}


# Log directories


@script(DESCRIBE_LOG_DIRS)
def describe_log_dirs_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    create_topic(c, "other")
    produce(c, "t", batch("a"))
    c.ok("all", topics=None)
    c.ok("a topic", topics=[{"topic": "t", "partitions": [0, 1]}])
    c.ok("a partition", topics=[{"topic": "t", "partitions": [0]}])
    c.ok("unknown", topics=[{"topic": "missing", "partitions": [0]}, {"topic": "t", "partitions": [7]}])
    c.ok("a topic without partitions", topics=[{"topic": "t", "partitions": []}])
    c.ok("a topic twice", topics=[{"topic": "t", "partitions": [0]}, {"topic": "t", "partitions": [0, 1]}])


@script(ALTER_REPLICA_LOG_DIRS)
def alter_replica_log_dirs_script(c: Conversation) -> None:
    create_topic(c, "t", 2)

    def of(path: str, topic: str, *indexes: int) -> dict[str, Any]:
        return {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": list(indexes)}]}]}

    c.ok("where it is", **of(DATA_DIR, "t", 0, 1))
    c.error("elsewhere", **of("/elsewhere", "t", 0))
    c.error("a relative path", **of("data", "t", 0))
    c.error("unknown partition", **of(DATA_DIR, "t", 0, 9))
    c.error("unknown topic", **of(DATA_DIR, "missing", 0))
    both = [*of(DATA_DIR, "t", 0)["dirs"], *of("/elsewhere", "t", 1)["dirs"]]
    c.error("two directories", dirs=both)
    c.ok("in the end", **of(DATA_DIR, "t", 0))


# Elections and reassignments


@script(ELECT_LEADERS)
def elect_leaders_script(c: Conversation) -> None:
    create_topic(c, "t", 2)

    def of(topic: str, *indexes: int, kind: int = 0) -> dict[str, Any]:
        rows = [{"topic": topic, "partitions": list(indexes)}]
        return {"election_type": kind, "topic_partitions": rows, "timeout": 1000}

    c.error("the preferred one leads", **of("t", 0, 1))
    c.error("unclean, and there is a leader", **of("t", 0, kind=1))
    c.ok("all partitions", election_type=0, topic_partitions=None, timeout=1000)
    c.error("unknown partition", **of("t", 9))
    c.error("unknown topic", **of("missing", 0))
    c.any("an unknown kind", **of("t", 0, kind=5))
    c.ok("no partitions", **of("t"))
    c.ok("in the end", election_type=0, topic_partitions=None, timeout=1000)


@script(ALTER_PARTITION_REASSIGNMENTS)
def alter_partition_reassignments_script(c: Conversation) -> None:
    create_topic(c, "t", 2)

    def of(replicas: list[int] | None, index: int = 0, topic: str = "t", *, changes: bool = True) -> dict[str, Any]:
        rows = [{"partition_index": index, "replicas": replicas}]
        return {
            "timeout": 1000,
            "allow_replication_factor_change": changes,
            "topics": [{"name": topic, "partitions": rows}],
        }

    c.ok("where it is", **of([1]))
    c.error("an unknown broker", **of([7]))
    c.error("a broker twice", **of([1, 1]))
    c.error("nowhere", **of([]))
    c.any("another number of replicas", **of([1, 1], changes=False))
    c.error("cancelled, and there is none", **of(None))
    c.error("unknown partition", **of([1], 9))
    c.error("unknown topic", **of([1], topic="missing"))
    c.ok("in the end", **of([1], 1, changes=False))


@script(LIST_PARTITION_REASSIGNMENTS)
def list_partition_reassignments_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    c.ok("all", timeout=1000, topics=None)
    c.ok("a topic", timeout=1000, topics=[{"name": "t", "partition_indexes": [0, 1]}])
    c.ok("unknown", timeout=1000, topics=[{"name": "missing", "partition_indexes": [0]}])
