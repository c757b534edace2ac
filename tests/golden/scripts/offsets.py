"""Offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from typing import Any
from uuid import UUID

from tests.golden.conversation import GROUP, SECOND, TOPIC, Conversation
from tests.golden.scripts.common import (
    ADD_OFFSETS_TO_TXN,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
    UNKNOWN_ID,
    commit_offset,
    create_topic,
    delete_topic,
    end_transaction,
    find_coordinator,
    init_producer,
    join_consumer_group,
    join_group,
    script,
)

Row = tuple[int, int] | tuple[int, int, str | None] | tuple[int, int, str | None, int]


class Commits:
    def __init__(self) -> None:
        self.ids: dict[str, UUID] = {}

    def topic(self, name: str, *rows: Row) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": row[0],
                "committed_offset": row[1],
                "committed_metadata": row[2] if len(row) > 2 else "note",
                "committed_leader_epoch": row[3] if len(row) > 3 else -1,
            }
            for row in rows
        ]
        return {"name": name, "topic_id": self.ids.get(name, UNKNOWN_ID), "partitions": partitions}

    def of(self, *rows: Row, group_id: str = "g", topic: str = "t", **more: Any) -> dict[str, Any]:
        member = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
        return {"group_id": group_id, **member, "topics": [self.topic(topic, *rows)], **more}


@script(OFFSET_COMMIT)
def offset_commit_script(c: Conversation) -> None:
    commits = Commits()
    for name in ("t", "other"):
        commits.ids[name] = create_topic(c, name, 2)
    of = commits.of
    find_coordinator(c, "g")

    c.reconnect()
    c.ok("first", **of((0, 1)))
    c.ok("repeated", **of((0, 2)))
    c.ok("repeated with the same offset", **of((0, 2)))
    c.together("three in one read", of((0, 3)), of((0, 4)), of((0, 5)))
    c.ok("other metadata", **of((0, 6, "another note")))
    c.ok("no metadata", **of((0, 6, None)))
    c.ok("empty metadata", **of((0, 6, "")))
    c.ok("a leader epoch", **of((0, 7, "note", 0)))
    c.ok("a leader epoch, repeated", **of((0, 8, "note", 0)))
    several = {"topics": [commits.topic("t", (0, 1), (1, 1)), commits.topic("other", (0, 5))]}
    c.ok("several partitions", **{**of(), **several})
    c.ok("several partitions, repeated", **{**of(), **several})
    c.any("a partition twice", **of((0, 9), (0, 10)))
    c.any("a negative offset", **of((0, -1)))
    c.any("an offset before all", **of((0, -5)))
    c.any("a topic without partitions", **of())
    c.ok("a retention time", **of((0, 3), retention_time=3_600_000))

    c.error("unknown topic", **of((0, 1), topic="missing"))
    c.error("unknown partition", **of((9, 1)))
    c.error("negative partition", **of((-1, 1)))
    c.error(
        "a good one and bad ones",
        **of((0, 1), (9, 1)) | {"topics": [commits.topic("t", (0, 1), (9, 1)), commits.topic("missing", (0, 1))]},
    )
    c.error("an empty group id", **of((0, 1), group_id=""))
    c.error("metadata that is too long", **of((0, 1, "x" * 101)))
    c.error("a generation of a group without members", **of((0, 1), generation_id_or_member_epoch=3, member_id="m"))
    c.any("a member id without a generation", **of((0, 1), member_id="m"))

    member = join_group(c, "classic")
    mine = {"group_id": "classic", "generation_id_or_member_epoch": member.generation, "member_id": member.member_id}
    c.reconnect()
    c.ok("a member, first", **of((0, 1), **mine))
    c.ok("a member, repeated", **of((0, 2), **mine))
    c.together("a member, three in one read", of((0, 3), **mine), of((0, 4), **mine), of((1, 5), **mine))
    c.error("another generation", **of((0, 1), **{**mine, "generation_id_or_member_epoch": 9}))
    c.error("another generation, repeated", **of((0, 1), **{**mine, "generation_id_or_member_epoch": 9}))
    c.error("an unknown member", **of((0, 1), **{**mine, "member_id": "somebody"}))
    c.error("no member of a group with members", **of((0, 1), group_id="classic"))
    c.ok("a member again", **of((0, 6), **mine))
    c.broker.deny(types=[GROUP])
    c.error("a member, repeated when its group is denied", **of((0, 7), **mine))
    c.broker.allow_everything()
    c.ok("a member, before its topic is denied", **of((0, 7), **mine))
    c.broker.deny(types=[TOPIC])
    c.error("a member, repeated when its topic is denied", **of((0, 7), **mine))
    c.broker.allow_everything()
    c.ok("a member, before everything is denied", **of((0, 7), **mine))
    c.broker.deny()
    c.error("a member, repeated when everything is denied", **of((0, 7), **mine))
    c.broker.allow_everything()
    c.ok("a member, repeated when it is allowed again", **of((0, 8), **mine))
    static = join_group(c, "static", "i")
    theirs = {"group_id": "static", "generation_id_or_member_epoch": static.generation, "member_id": static.member_id}
    c.ok("a static member", **of((0, 1), **theirs, group_instance_id="i"))
    c.any("a fenced static member", **of((0, 1), **{**theirs, "member_id": "before"}, group_instance_id="i"))
    c.any("an unknown instance", **of((0, 1), **theirs, group_instance_id="j"))

    modern = join_consumer_group(c, "modern", "t")
    theirs = {"group_id": "modern", "generation_id_or_member_epoch": modern.generation, "member_id": modern.member_id}
    c.reconnect()
    c.any("a member of the consumer protocol", **of((0, 1), **theirs))
    c.any("a member of the consumer protocol, repeated", **of((0, 2), **theirs))
    c.error("an epoch of the future", **of((0, 1), **{**theirs, "generation_id_or_member_epoch": 9}))
    c.error("an epoch of the past", **of((0, 1), **{**theirs, "generation_id_or_member_epoch": 0}))
    c.error("an unknown member of the consumer protocol", **of((0, 1), **{**theirs, "member_id": "somebody"}))

    c.reconnect()
    c.ok("before a topic is deleted", **of((0, 1), topic="other"))
    delete_topic(c, "other")
    c.error("a deleted topic, repeated", **of((0, 1), topic="other"))
    old_id = commits.ids["other"]
    commits.ids["other"] = create_topic(c, "other", 2)
    c.ok("a topic that was created again", **of((0, 1), topic="other"))
    commits.ids["other"] = old_id
    c.any("by the id of the topic before", **of((0, 1), topic="other"))
    c.together_of_several_apis(
        "between others in one read",
        (METADATA, 1, {"topics": []}),
        (OFFSET_COMMIT, c.version, of((0, 2))),
        (METADATA, 2, {"topics": []}),
    )
    c.ok("in the end", **of((0, 1)))


@script(OFFSET_COMMIT, "on a slow disk", wait_until_flushed=True)
def offset_commit_on_disk(c: Conversation) -> None:
    commits = Commits()
    commits.ids["t"] = create_topic(c, "t", 2)
    find_coordinator(c, "g")
    of = commits.of
    c.reconnect()
    c.start("first", **of((0, 1))).wait(9).wait(1)
    c.start("repeated", **of((0, 2))).wait(10)
    c.together("three in one read", of((0, 3)), of((0, 4)), of((0, 5)), wait_ms=20)
    c.error("unknown partition", **of((9, 1)))
    c.together("a bad one between good ones", of((0, 3)), of((9, 4)), of((0, 5)), wait_ms=20)
    c.together_of_several_apis(
        "a later request is answered after it",
        (OFFSET_COMMIT, c.version, of((0, 1))),
        (METADATA, 1, {"topics": []}),
        wait_ms=20,
    )
    c.broker.sync_ms = 10 * SECOND
    c.start("the disk is too slow", **of((0, 1))).wait(5 * SECOND).wait(10 * SECOND)
    c.broker.sync_ms = 10
    c.broker.pass_time(30 * SECOND)
    c.start("in the end", **of((0, 1))).wait(20)


@script(OFFSET_FETCH)
def offset_fetch_script(c: Conversation) -> None:
    ids = {name: create_topic(c, name, 2) for name in ("t", "other")}
    find_coordinator(c, "g")

    def topic(name: str, *indexes: int) -> dict[str, Any]:
        return {"name": name, "topic_id": ids.get(name, UNKNOWN_ID), "partition_indexes": list(indexes)}

    def group(group_id: str, topics: list[dict[str, Any]] | None, **member: Any) -> dict[str, Any]:
        return {"group_id": group_id, "topics": topics, **member}

    def of(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"groups": list(groups), **more} if c.version >= 8 else {**groups[0], **more}

    everything: list[dict[str, Any]] | None = [] if c.version < 2 else None
    c.any("nothing is committed", **of(group("g", [topic("t", 0)])))
    commit_offset(c, "g", "t", 42)
    commit_offset(c, "g", "other", 7, 1)
    c.ok("what is committed", **of(group("g", [topic("t", 0)])))
    c.ok("what is committed, repeated", **of(group("g", [topic("t", 0)])))
    c.ok("everything", **of(group("g", everything)))
    c.ok("several partitions", **of(group("g", [topic("t", 0, 1), topic("other", 1)])))
    c.any("unknown partition", **of(group("g", [topic("t", 9)])))
    c.any("unknown topic", **of(group("g", [topic("missing", 0)])))
    c.any("a partition twice", **of(group("g", [topic("t", 0, 0)])))
    c.any("no topics", **of(group("g", [])))
    c.any("an unknown group", **of(group("none", [topic("t", 0)])))
    c.any("an unknown group, everything", **of(group("none", everything)))
    c.any("an empty group id", **of(group("", [topic("t", 0)])))
    if c.version >= 8:
        c.any(
            "several groups", **of(group("g", None), group("none", [topic("t", 0)]), group("", None), group("g", None))
        )
        c.ok("no groups", **of())
    c.together("two in one read", of(group("g", [topic("t", 0)])), of(group("none", [topic("t", 0)])))

    producer = init_producer(c, "tx")
    owner = {"transactional_id": "tx", "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    c.arrange(ADD_OFFSETS_TO_TXN, 3, **owner, group_id="g")
    rows = [{"partition_index": 0, "committed_offset": 50, "committed_metadata": ""}]
    c.arrange(TXN_OFFSET_COMMIT, 3, **owner, group_id="g", topics=[{"name": "t", "partitions": rows}])
    c.ok("an offset is pending", **of(group("g", [topic("t", 0)])))
    c.any("an offset is pending, and it is to be stable", **of(group("g", [topic("t", 0, 1)]), require_stable=True))
    c.any("everything, and it is to be stable", **of(group("g", everything), require_stable=True))
    end_transaction(c, "tx", producer, commit=True)
    c.ok("the offset is stable", **of(group("g", [topic("t", 0)]), require_stable=True))

    modern = join_consumer_group(c, "modern", "t")
    c.any(
        "a member of the consumer protocol",
        **of(group("modern", [topic("t", 0)], member_id=modern.member_id, member_epoch=modern.generation)),
    )
    c.any("an epoch of the past", **of(group("modern", [topic("t", 0)], member_id=modern.member_id, member_epoch=0)))
    c.any("an epoch of the future", **of(group("modern", [topic("t", 0)], member_id=modern.member_id, member_epoch=9)))
    c.any("an unknown member", **of(group("modern", [topic("t", 0)], member_id="somebody", member_epoch=1)))
    delete_topic(c, "other")
    c.any("a deleted topic", **of(group("g", [topic("other", 1)])))
    c.any("everything, after a topic was deleted", **of(group("g", everything)))
    ids["other"] = create_topic(c, "other", 2)
    c.any("a topic that was created again", **of(group("g", [topic("other", 1)])))
    c.broker.deny()
    c.any("denied on a connection that was allowed", **of(group("g", [topic("t", 0)])))
    c.broker.allow_everything()
    c.ok("in the end", **of(group("g", [topic("t", 0)])))


@script(OFFSET_FETCH, "on a slow disk", wait_until_flushed=True)
def offset_fetch_on_disk(c: Conversation) -> None:
    commits = Commits()
    commits.ids["t"] = create_topic(c, "t", 2)
    find_coordinator(c, "g")
    wanted = {"name": "t", "topic_id": commits.ids["t"], "partition_indexes": [0]}
    asked = {"group_id": "g", "topics": [wanted]}
    asked = {"groups": [asked]} if c.version >= 8 else asked
    c.together_of_several_apis(
        "waits for a commit", (OFFSET_COMMIT, 8, commits.of((0, 5))), (OFFSET_FETCH, c.version, asked), wait_ms=20
    )
    c.ok("in the end", **asked)


@script(OFFSET_DELETE)
def offset_delete_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    commit_offset(c, "g", "t", 42)

    def of(*indexes: int, topic: str = "t", group_id: str = "g") -> dict[str, Any]:
        rows = [{"partition_index": index} for index in indexes]
        return {"group_id": group_id, "topics": [{"name": topic, "partitions": rows}]}

    c.ok("what is committed", **of(0))
    c.error("it is gone, and so is the group", **of(0))
    commit_offset(c, "g", "t", 42)
    commit_offset(c, "g", "t", 43, 1)
    c.ok("one of two", **of(1))
    c.ok("what is not committed", **of(1))
    c.error("unknown topic", **of(0, topic="missing"))
    c.error("unknown partition", **of(0, 9))
    c.error("an unknown group", **of(0, group_id="none"))
    c.error("an empty group id", **of(0, group_id=""))
    join_group(c, "classic")
    c.any("a group with members", **of(0, group_id="classic"))
    join_consumer_group(c, "modern", "t")
    c.error("a topic that members read", **of(0, group_id="modern"))
    commit_offset(c, "twice", "t", 1, 0)
    c.any("a partition twice", **of(0, 0, group_id="twice"))
    commit_offset(c, "last", "t", 1, 0)
    commit_offset(c, "last", "t", 1, 1)
    c.ok("in the end", **of(0, group_id="last"))
