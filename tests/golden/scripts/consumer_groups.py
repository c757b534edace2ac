"""Groups of the consumer protocol: ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from typing import Any
from uuid import UUID

from tests.golden.conversation import SECOND, Conversation
from tests.golden.scripts.common import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    commit_offset,
    create_topic,
    delete_topic,
    find_coordinator,
    join_consumer_group,
    join_group,
    script,
)

# The consumer protocol


@script(CONSUMER_GROUP_HEARTBEAT)
def consumer_group_heartbeat_script(c: Conversation) -> None:
    topic_id = create_topic(c, "t", 3)
    create_topic(c, "unread")
    find_coordinator(c, "g")
    own_id = "" if c.version == 0 else "a-member-of-its-own"

    def of(member_id: str, epoch: int, group_id: str = "g", **more: Any) -> dict[str, Any]:
        return {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, **more}

    def joining(member_id: str = own_id, group_id: str = "g", **more: Any) -> dict[str, Any]:
        subscription = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        return of(member_id, 0, group_id, **{**subscription, **more})

    def owned(*indexes: int, topic: UUID = topic_id) -> list[dict[str, Any]]:
        return [{"topic_id": topic, "partitions": list(indexes)}]

    first = c.ok("the first member", **joining())
    member_id, epoch = first["member_id"], first["member_epoch"]
    c.ok("a heartbeat", **of(member_id, epoch))
    c.ok("a heartbeat, repeated", **of(member_id, epoch))
    c.ok("what it owns", **of(member_id, epoch, topic_partitions=owned(0, 1, 2)))
    c.ok(
        "all of it again",
        **of(member_id, epoch, rebalance_timeout=60_000, subscribed_topic_names=["t"], topic_partitions=owned(0, 1, 2)),
    )
    c.any("joins again", **joining(member_id))
    c.error("an epoch of the future", **of(member_id, epoch + 9))
    c.any("an epoch of the past", **of(member_id, epoch - 1))
    c.error("an unknown member", **of("somebody", 1))
    c.error("an unknown member leaves", **of("somebody", -1))
    c.error("an unknown group", **of("somebody", 1, "none"))
    c.error("an empty group id", **joining(group_id=""))
    c.any("no member id", **joining(""))
    c.any("no member id, with an epoch", **of("", 3))
    c.error("no subscription", **joining("x", subscribed_topic_names=None))
    c.any("an empty subscription", **joining("empty", "g-empty", subscribed_topic_names=[]))
    c.error("no rebalance timeout", **joining("x", rebalance_timeout=-1))
    c.error("partitions with a join", **joining("x", topic_partitions=owned(0)))
    c.error("no partitions with a join", **joining("x", topic_partitions=None))
    c.error("an unknown assignor", **joining("x", server_assignor="mine"))
    c.ok("an assignor", **joining("assigned", "g-assigned", server_assignor="range"))
    c.any("an empty instance id", **joining("x", instance_id=""))
    c.any("an empty rack", **joining("x", rack_id=""))
    c.error("an epoch below all", **of(member_id, -3))
    c.ok("a topic that there is not", **joining("m", "g-missing", subscribed_topic_names=["missing"]))
    c.any("a topic name that cannot be", **joining("m2", "g-missing", subscribed_topic_names=["not/a/name"]))
    if c.version >= 1:
        c.any("an expression", **joining("r", "g-regex", subscribed_topic_names=[], subscribed_topic_regex="t.*"))
        c.broker.pass_time(2 * SECOND)
        c.any("an expression, the next heartbeat", **of("r", 1, "g-regex"))
        c.any(
            "an expression that is none",
            **joining("r2", "g-regex", subscribed_topic_names=[], subscribed_topic_regex="("),
        )

    # Another member: the first gives partitions up, the second gets them
    second = c.ok("the second member", **joining("second" if c.version else ""))
    other_id, other_epoch = second["member_id"], second["member_epoch"]
    giving = c.ok("the first gives up", **of(member_id, epoch, topic_partitions=owned(0, 1, 2)))
    kept = giving["assignment"]["topic_partitions"][0]["partitions"] if giving["assignment"] else [0]
    given = c.ok("the first has given up", **of(member_id, giving["member_epoch"], topic_partitions=owned(*kept)))
    c.ok("the second gets them", **of(other_id, other_epoch, topic_partitions=[]))
    c.any("a partition that there is not", **of(other_id, other_epoch, topic_partitions=owned(99)))
    c.any("a topic id that there is not", **of(other_id, other_epoch, topic_partitions=owned(0, topic=UUID(int=77))))
    c.ok("another subscription", **of(other_id, other_epoch, subscribed_topic_names=["unread", "t"]))
    c.ok("the second leaves", **of(other_id, -1))
    c.error("the second has left", **of(other_id, other_epoch))
    c.any("the first after that", **of(member_id, given["member_epoch"]))
    c.any("the epoch before", **of(member_id, given["member_epoch"]))
    c.error("an epoch of long ago", **of(member_id, epoch))

    # Static members
    static = joining("s1", "g-static", instance_id="i")
    begun = c.ok("a static member", **static)
    c.error("its instance is in use", **joining("s2", "g-static", instance_id="i"))
    c.ok("it leaves for a while", **of(begun["member_id"], -2, "g-static", instance_id="i"))
    c.ok("it comes back", **joining("s3", "g-static", instance_id="i"))
    c.any("its predecessor", **of(begun["member_id"], 1, "g-static", instance_id="i"))
    c.any("an instance that there is not leaves", **of("s3", -2, "g-static", instance_id="j"))
    c.error("leaves for a while, and is not static", **of(member_id, -2))

    join_group(c, "classic")
    c.any("a classic group with members", **joining("x", "classic"))
    commit_offset(c, "simple", "t", 3)
    c.any("a group with offsets and no members", **joining("x", "simple"))
    delete_topic(c, "t")
    c.any("its topic is deleted", **of("s3", 1, "g-static"))
    c.broker.pass_time(60 * SECOND)
    c.error("a session that has expired", **of(member_id, given["member_epoch"]))
    c.ok("in the end", **joining("last", "g-last", subscribed_topic_names=["unread"]))


@script(CONSUMER_GROUP_HEARTBEAT, "on a slow disk", wait_until_flushed=True)
def consumer_group_heartbeat_on_disk(c: Conversation) -> None:
    create_topic(c, "t", 3)
    find_coordinator(c, "g")
    fields = {"group_id": "g", "rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    c.start("the first member", **fields, member_id="m", member_epoch=0).wait(10).wait(10)
    c.start("a heartbeat", group_id="g", member_id="m", member_epoch=1).wait(10)
    c.error("an unknown member", group_id="g", member_id="somebody", member_epoch=1)


@script(CONSUMER_GROUP_DESCRIBE)
def consumer_group_describe_script(c: Conversation) -> None:
    def of(*groups: str, operations: bool = False) -> dict[str, Any]:
        return {"group_ids": list(groups), "include_authorized_operations": operations}

    create_topic(c, "t", 2)
    member = join_consumer_group(c, "g", "t")
    c.ok("a group", **of("g"))
    c.ok("operations", **of("g", operations=True))
    c.arrange(
        CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id="g",
        member_id="second",
        member_epoch=0,
        instance_id="i",
        rack_id="r",
        rebalance_timeout=60_000,
        subscribed_topic_names=["t", "missing"],
        server_assignor="uniform",
        topic_partitions=[],
    )
    c.ok("two members", **of("g"))
    c.error("an unknown group", **of("none"))
    c.error("an empty group id", **of(""))
    join_group(c, "classic")
    c.error("a classic group", **of("classic"))
    c.error("several, one of them twice", **of("g", "none", "g"))
    for member_id in (member.member_id, "second"):
        c.arrange(CONSUMER_GROUP_HEARTBEAT, 0, group_id="g", member_id=member_id, member_epoch=-1)
    c.ok("an empty group", **of("g"))
