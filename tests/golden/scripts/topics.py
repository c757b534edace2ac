"""Topics and where they are: Metadata, DescribeTopicPartitions, CreateTopics, DeleteTopics, CreatePartitions."""

from typing import Any
from uuid import UUID

from tests.golden.conversation import Conversation
from tests.golden.scripts.common import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
    UNKNOWN_ID,
    create_topic,
    create_topic_twice,
    delete_topic,
    find_coordinator,
    script,
)


@script(METADATA)
def metadata_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    create_topic(c, "other")
    by_id_from, all_is_null_from = 10, 1

    def of(*names: str, create: bool = False, **more: Any) -> dict[str, Any]:
        return {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": create, **more}

    def of_ids(*ids: UUID, **more: Any) -> dict[str, Any]:
        topics = [{"topic_id": one, "name": None} for one in ids]
        return {"topics": topics, "allow_auto_topic_creation": False, **more}

    everything = of() if c.version < all_is_null_from else {**of(), "topics": None}
    c.reconnect()
    c.ok("a topic, first", **of("t"))
    c.ok("a topic, repeated", **of("t"))
    c.ok("all topics, first", **everything)
    c.ok("all topics, repeated", **everything)
    c.ok("no topics", **of())
    c.ok("several, one of them twice", **of("t", "other", "t"))
    c.together("three in one read", of("t"), everything, of("other"))
    operations = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    c.ok("operations", **of("t", **operations))
    c.ok("all topics with operations", **{**everything, **operations})
    create_topic(c, "a-new-one", 3)
    c.ok("all topics, after one was created", **everything)
    delete_topic(c, "a-new-one")
    c.ok("all topics, after one was deleted", **everything)
    c.any("a deleted topic", **of("a-new-one"))
    create_topic_twice(c, "renewed")
    c.ok("a topic that was created again", **of("renewed"))
    if c.version < 4:  # these versions always create what is missing
        c.any("an unknown topic, first", **of("missing"))
    c.any("an unknown topic", **of("missing"))
    c.error(
        "a good one and an unknown one",
        **of("t", "missing-too", "not/a/name") if c.version >= 4 else of("t", "not/a/name"),
    )
    c.error("a name that cannot be", **of("not/a/name"))
    c.error("an empty name", **of(""))
    c.any("an unknown topic is created", **of("created", create=True))
    c.any("it is there", **of("created", create=True))
    c.any("an internal topic before it is there", **of("__consumer_offsets", create=True))
    find_coordinator(c, "g")
    c.ok("an internal topic", **of("__consumer_offsets"))
    if c.version >= by_id_from:
        topic_id = create_topic(c, "by-id")
        c.any("by id", **of_ids(topic_id))
        c.error("an unknown id", **of_ids(UNKNOWN_ID))
        c.error(
            "a good id, a bad id and a name",
            **{**of("t"), "topics": [*of_ids(topic_id, UNKNOWN_ID)["topics"], *of("t")["topics"]]},
        )
        c.any("an id and a name", **{**of(), "topics": [{"topic_id": topic_id, "name": "t"}]})
        c.any("neither id nor name", **{**of(), "topics": [{"topic_id": None, "name": None}]})
    c.broker.deny()
    c.any("all topics, repeated when it is denied", **everything)
    c.any("a topic, repeated when it is denied", **of("t", create=True, **operations))
    c.any("an unknown topic when it is denied", **of("secret", create=True))
    c.broker.allow_everything()
    c.ok("all topics, repeated when it is allowed again", **everything)
    c.ok("in the end", **of("t"))


@script(DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions_script(c: Conversation) -> None:
    create_topic(c, "a", 3)
    create_topic(c, "b", 2)
    create_topic_twice(c, "renewed")

    def of(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> dict[str, Any]:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        return {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": at}

    c.ok("a topic", **of("a"))
    c.ok("a topic, repeated", **of("a"))
    c.ok("all topics", **of())
    c.ok("several, not in order, one twice", **of("b", "a", "b"))
    c.ok("a page of two", **of(limit=2))
    c.ok("the next page", **of(limit=2, cursor=("a", 2)))
    c.ok("from another topic on", **of(cursor=("b", 1)))
    c.ok("behind the last partition", **of("a", cursor=("a", 7)))
    c.ok("from a topic that there is not", **of(cursor=("aa", 0)))
    c.ok("a page of none", **of(limit=0))
    c.any("a negative page", **of(limit=-1))
    c.error("an unknown topic", **of("a", "missing"))
    c.error("a name that cannot be", **of("not/a/name"))
    c.error("a cursor at a negative partition", **of("a", cursor=("a", -1)))
    c.error("a cursor at another topic", **of("b", cursor=("a", 0)))
    find_coordinator(c, "g")
    c.ok("an internal topic", **of("__consumer_offsets"))
    c.ok("in the end", **of("renewed"))


@script(CREATE_TOPICS)
def create_topics_script(c: Conversation) -> None:
    def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
        return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}

    def of(*topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
        return {"topics": list(topics), "timeout": 1000, "validate_only": validate_only}

    def assigned(*brokers: int, index: int = 0) -> dict[str, Any]:
        return {"partition_index": index, "broker_ids": list(brokers)}

    def config(name: str, value: str | None) -> dict[str, Any]:
        return {"configs": [{"name": name, "value": value}]}

    c.ok("a topic", **of(topic("t", 3)))
    c.error("it exists", **of(topic("t")))
    c.ok("only validated", **of(topic("validated", 2), validate_only=True))
    c.ok("not created by that", **of(topic("validated")))
    c.error("only validated, and it exists", **of(topic("t"), validate_only=True))
    c.any("defaults", **of(topic("defaults", -1, -1)))
    c.ok("configs", **of(topic("configured", **config("retention.ms", "1000"))))
    c.ok("several topics", **of(topic("s1"), topic("s2", 2)))
    c.error("a name twice", **of(topic("twice"), topic("twice", 2), topic("once")))
    c.error("a good one and a bad one", **of(topic("good"), topic("not/a/name")))
    for name, value in {
        "an empty name": "",
        "a dot": ".",
        "a name that is too long": "x" * 250,
        "a name with blanks": "a b",
        "the cluster's own name": "__cluster_metadata",
    }.items():
        c.error(name, **of(topic(value)))
    c.ok("the longest name", **of(topic("x" * 249)))
    c.ok("a name with a dot", **of(topic("a.b")))
    c.error("a name that collides with it", **of(topic("a_b")))
    c.error("no partitions", **of(topic("none", 0)))
    c.error("too few partitions", **of(topic("none", -2)))
    c.error("too many partitions", **of(topic("none", 2**31 - 1)))
    c.error("more replicas than brokers", **of(topic("none", 1, 2)))
    c.error("no replicas", **of(topic("none", 1, 0)))
    c.ok("an assignment", **of(topic("assigned", -1, -1, assignments=[assigned(1), assigned(1, index=1)])))
    c.error("an unknown broker", **of(topic("none", -1, -1, assignments=[assigned(9)])))
    c.error("a broker twice", **of(topic("none", -1, -1, assignments=[assigned(1, 1)])))
    c.error("a partition twice", **of(topic("none", -1, -1, assignments=[assigned(1), assigned(1)])))
    c.error("a gap", **of(topic("none", -1, -1, assignments=[assigned(1), assigned(1, index=2)])))
    c.error("nowhere", **of(topic("none", -1, -1, assignments=[assigned()])))
    c.error("an assignment and a number", **of(topic("none", 1, 1, assignments=[assigned(1)])))
    c.error("an unknown config", **of(topic("none", **config("what.is.this", "1"))))
    c.error("a config of brokers", **of(topic("none", **config("num.partitions", "1"))))
    c.error("a config that is no number", **of(topic("none", **config("retention.ms", "long"))))
    c.error("a config without a value", **of(topic("none", **config("retention.ms", None))))
    c.error("a policy that there is not", **of(topic("none", **config("cleanup.policy", "burn"))))
    c.any("an internal topic", **of(topic("__consumer_offsets")))
    c.ok("in the end", **of(topic("last"), validate_only=True))


@script(DELETE_TOPICS)
def delete_topics_script(c: Conversation) -> None:
    by_id_from = 6

    def of(*names: str) -> dict[str, Any]:
        if c.version < by_id_from:
            return {"topic_names": list(names), "timeout": 1000}
        return {"topics": [{"name": name} for name in names], "timeout": 1000}

    for name in ("a", "b", "c", "d", "e", "last"):
        create_topic(c, name)
    c.ok("a topic", **of("a"))
    c.error("it is gone", **of("a"))
    c.error("unknown", **of("missing"))
    c.error("a name that cannot be", **of("not/a/name"))
    c.error("an empty name", **of(""))
    c.ok("several", **of("b", "c"))
    c.error("a good one and a bad one", **of("missing", "d"))
    c.any("a name twice", **of("e", "e"))
    find_coordinator(c, "g")
    c.any("an internal topic", **of("__consumer_offsets"))
    if c.version >= by_id_from:
        topic_id = create_topic(c, "by-id")
        other = create_topic(c, "both")
        for name, topics in {
            "by id": [{"name": None, "topic_id": topic_id}],
            "unknown id": [{"name": None, "topic_id": UNKNOWN_ID}],
            "an id twice": [{"name": None, "topic_id": other}] * 2,
            "id and name": [{"name": "both", "topic_id": other}],
            "a name and the id of the same topic": [{"name": "both"}, {"name": None, "topic_id": other}],
            "neither": [{"name": None}],
        }.items():
            c.any(name, topics=topics, timeout=1000)
    c.broker.deny()
    c.error("denied", **of("last", "missing"))
    c.broker.allow_everything()
    c.ok("in the end", **of("last"))


@script(CREATE_PARTITIONS)
def create_partitions_script(c: Conversation) -> None:
    create_topic(c, "t")

    def topic(name: str, count: int, *assignments: list[int]) -> dict[str, Any]:
        rows = [{"broker_ids": one} for one in assignments] if assignments else None
        return {"name": name, "count": count, "assignments": rows}

    def of(*topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
        return {"topics": list(topics), "timeout": 1000, "validate_only": validate_only}

    c.ok("one more", **of(topic("t", 2)))
    c.ok("only validated", **of(topic("t", 9), validate_only=True))
    c.ok("an assignment", **of(topic("t", 4, [1], [1])))
    c.error("as many as there are", **of(topic("t", 4)))
    c.error("fewer", **of(topic("t", 1)))
    c.error("none", **of(topic("t", 0)))
    c.error("negative", **of(topic("t", -3)))
    c.error("too many", **of(topic("t", 2**31 - 1)))
    c.error("unknown", **of(topic("missing", 2)))
    c.error("a name that cannot be", **of(topic("not/a/name", 2)))
    c.error("a topic twice", **of(topic("t", 5), topic("t", 6)))
    c.error("too few assignments", **of(topic("t", 6, [1])))
    c.error("an unknown broker", **of(topic("t", 5, [7])))
    c.error("another number of replicas", **of(topic("t", 5, [1, 1])))
    c.any("an empty assignment", **of({"name": "t", "count": 5, "assignments": []}))
    create_topic(c, "good")
    c.error("a good one and a bad one", **of(topic("good", 2), topic("missing", 2)))
    c.ok("in the end", **of(topic("good", 9), validate_only=True))
