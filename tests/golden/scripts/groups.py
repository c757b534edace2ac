"""Groups: FindCoordinator, the classic protocol, and what administrators ask about groups."""

from typing import Any

from tests.golden.conversation import OK, SECOND, Conversation
from tests.golden.scripts.common import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    PROTOCOLS,
    SYNC_GROUP,
    Member,
    commit_offset,
    create_topic,
    find_coordinator,
    join_consumer_group,
    join_group,
    script,
)

STATIC_FROM = {JOIN_GROUP: 5, SYNC_GROUP: 3, HEARTBEAT: 3, LEAVE_GROUP: 3}


@script(FIND_COORDINATOR)
def find_coordinator_script(c: Conversation) -> None:
    def of(*keys: str, kind: int = 0) -> dict[str, Any]:
        if c.version >= 4:
            return {"key_type": kind, "coordinator_keys": list(keys)}
        return {"key": keys[0], "key_type": kind}

    c.any("the first question", **of("g"))
    c.ok("the second question", **of("g"))
    c.ok("another group", **of("another"))
    c.any("a transactional id", **of("tx", kind=1))
    c.any("a transactional id again", **of("tx", kind=1))
    c.any("an empty key", **of(""))
    c.any("an empty transactional id", **of("", kind=1))
    c.any("a share group", **of("g:AAAAAAAAAAAAAAAAAAAAAA:0", kind=2))
    c.any("an unknown kind", **of("g", kind=9))
    c.any("a negative kind", **of("g", kind=-1))
    if c.version >= 4:
        c.ok("several keys", **of("a", "b", "a"))
    c.together("two in one read", of("a"), of("b"))
    c.ok("in the end", **of("g"))


# The classic protocol


def wish(group_id: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
        **more,
    }


@script(JOIN_GROUP)
def join_group_script(c: Conversation) -> None:
    find_coordinator(c, "g")
    needs_id = c.version >= 4

    def new_member(name: str, **more: Any) -> str:
        """The id of a member that is about to join; older versions give it with the join."""
        if not needs_id:
            return ""
        refused = c.error(f"{name}, without an id", **wish("g", **more))
        assert refused is not None
        member_id: str = refused["member_id"]
        return member_id

    first = new_member("the first member")
    joined = c.ok("the first member", **wish("g", first, reason="because"))
    first = joined["member_id"]
    c.ok("the leader joins again", **wish("g", first))
    one, other = c.broker.connect(), c.broker.connect()
    second = new_member("the second member")
    waiting = c.start("the second member waits", on=one, **wish("g", second)).wait(100)
    c.start("until the first joins again", on=other, expects=OK, **wish("g", first))
    waiting.look()
    second = waiting.responses(JOIN_GROUP, c.version)[0]["member_id"]
    c.arrange(
        SYNC_GROUP,
        3,
        group_id="g",
        generation_id=2,
        member_id=first,
        assignments=[{"member_id": first, "assignment": b"a"}, {"member_id": second, "assignment": b"b"}],
    )
    c.ok("a member of a stable group joins again", **wish("g", second))
    c.error("an unknown member", **wish("g", "somebody"))
    c.error(
        "no protocol in common",
        **wish("g", "" if not needs_id else first, protocols=[{"name": "sticky", "metadata": b""}]),
    )
    c.error("another protocol type", **wish("g", "" if not needs_id else first, protocol_type="connect"))
    c.error("no protocols", **wish("g2", protocols=[]))
    c.error("an empty protocol type", **wish("g2", protocol_type=""))
    c.error("an empty group id", **wish(""))
    c.error("a session that is too short", **wish("g", session_timeout=10))
    c.error("a session that is too long", **wish("g", session_timeout=100_000_000))
    c.any("no rebalance timeout", **wish("g3", rebalance_timeout=-1))
    c.start("the leader of a stable group waits for the other one", on=one, **wish("g", first)).wait(29 * SECOND).wait(
        40 * SECOND
    )
    c.any("two protocols of the same name", **wish("g4", protocols=[PROTOCOLS[0], PROTOCOLS[0]]))
    c.any("metadata is empty", **wish("g5", protocols=[{"name": "range", "metadata": b""}]))
    create_topic(c, "t")
    join_consumer_group(c, "modern", "t")
    c.any("a group of the consumer protocol", **wish("modern"))
    commit_offset(c, "simple", "t", 3)
    c.any("a group with offsets and no members", **wish("simple"))
    if c.version >= STATIC_FROM[JOIN_GROUP]:
        static_members(c)
    alone = c.arrange(JOIN_GROUP, 3, **wish("alone"))
    c.ok("in the end", **wish("alone", alone["member_id"]))


def static_members(c: Conversation) -> None:
    static = wish("static", group_instance_id="i")
    joined = c.ok("a static member", **static)
    replaced = c.any("a static member starts anew", **static)
    assert replaced is not None
    c.error("its predecessor", **{**static, "member_id": joined["member_id"]})
    c.any("with its own id", **{**static, "member_id": replaced["member_id"]})
    c.error("an unknown id", **{**static, "member_id": "somebody"})
    member = join_group(c, "stable", "i")
    c.any("a static leader starts anew in a stable group", **wish("stable", group_instance_id="i"))
    c.error("the static leader's predecessor", **wish("stable", member.member_id, group_instance_id="i"))
    c.start("an empty instance id", on=c.broker.connect(), **wish("stable", group_instance_id="")).wait(61 * SECOND)


@script(JOIN_GROUP, "on a slow disk", wait_until_flushed=True)
def join_group_on_disk(c: Conversation) -> None:
    find_coordinator(c, "g")
    c.start("a member of a group that is not there", **wish("g")).wait(10).wait(10)
    member = join_group(c, "stable")
    c.start("the leader joins again", **wish("stable", member.member_id)).wait(10)
    c.error("an unknown member", **wish("stable", "somebody"))


@script(SYNC_GROUP)
def sync_group_script(c: Conversation) -> None:
    find_coordinator(c, "g")

    def of(group_id: str, member: Member, *rows: tuple[str, bytes], **more: Any) -> dict[str, Any]:
        assignments = [{"member_id": member_id, "assignment": data} for member_id, data in rows]
        return {
            "group_id": group_id,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": assignments,
            **more,
        }

    joined = c.arrange(JOIN_GROUP, 3, **wish("g"))
    leader = Member(joined["member_id"], joined["generation_id"])
    c.error("an unknown member", **of("g", leader._replace(member_id="somebody")))
    c.error("another generation", **of("g", leader._replace(generation=9)))
    c.any("another protocol", **of("g", leader, protocol_name="sticky"))
    c.any("another protocol type", **of("g", leader, protocol_type="connect"))
    c.error("an unknown group", **of("none", leader))
    c.error("an empty group id", **of("", leader))
    c.ok("the leader", **of("g", leader, (leader.member_id, b"its part")))
    c.ok("the leader again", **of("g", leader))
    c.ok("the leader again, with another assignment", **of("g", leader, (leader.member_id, b"not looked at")))
    c.any("a member that is unknown in the assignment", **of("g", leader, ("gone", b"x")))

    # Two members
    one = c.broker.connect()
    c.raw(
        "arranging: the second member waits",
        c.frame(JOIN_GROUP, 3, wish("g")),
        on=one,
    )
    c.any("while the group rebalances", **of("g", leader))
    again = c.arrange(JOIN_GROUP, 3, **wish("g", leader.member_id))
    leader = Member(leader.member_id, again["generation_id"])
    follower = next(
        Member(row["member_id"], leader.generation) for row in again["members"] if row["member_id"] != leader.member_id
    )
    waiting = c.start("the follower waits", on=c.broker.connect(), **of("g", follower)).wait(100)
    c.ok(
        "until the leader has synchronized", **of("g", leader, (leader.member_id, b"one"), (follower.member_id, b"two"))
    )
    waiting.look()
    c.ok("the follower again", **of("g", follower))
    if c.version >= STATIC_FROM[SYNC_GROUP]:
        static = join_group(c, "static", "i")
        c.ok("a static member", **of("static", static, group_instance_id="i"))
        c.error("a fenced static member", **of("static", static._replace(member_id="before"), group_instance_id="i"))
        c.error("an unknown instance", **of("static", static, group_instance_id="j"))
    create_topic(c, "t")
    modern = join_consumer_group(c, "modern", "t")
    c.error("a group of the consumer protocol", **of("modern", modern))
    c.ok("in the end", **of("g", follower))


@script(HEARTBEAT)
def heartbeat_script(c: Conversation) -> None:
    member = join_group(c, "g")

    def of(member: Member = member, group_id: str = "g", **more: Any) -> dict[str, Any]:
        return {"group_id": group_id, "generation_id": member.generation, "member_id": member.member_id, **more}

    c.reconnect()
    c.ok("first", **of())
    c.ok("repeated", **of())
    c.together("three in one read", of(), of(), of())
    c.error("an unknown member", **of(member._replace(member_id="somebody")))
    c.error("another generation", **of(member._replace(generation=7)))
    c.error("no generation", **of(member._replace(generation=-1)))
    c.error("an unknown group", **of(group_id="none"))
    c.error("an empty group id", **of(group_id=""))
    c.error("no member id", **of(member._replace(member_id="")))
    c.together(
        "a good one and a bad one in one read", of(), of(member._replace(generation=7)), of(group_id="none"), of()
    )
    c.broker.deny()
    c.error("denied on a connection that was allowed", **of())
    c.broker.allow_everything()
    one = c.broker.connect()
    c.raw("arranging: another member waits", c.frame(JOIN_GROUP, 3, wish("g")), on=one)
    c.error("a rebalance is in progress", **of())
    again = c.arrange(JOIN_GROUP, 3, **wish("g", member.member_id))
    newer = Member(member.member_id, again["generation_id"])
    c.any("before the leader has synchronized", **of(newer))
    c.error("the generation before", **of())
    c.arrange(
        SYNC_GROUP,
        3,
        group_id="g",
        generation_id=newer.generation,
        member_id=newer.member_id,
        assignments=[],
    )
    c.ok("in the new generation", **of(newer))
    static = join_group(c, "static", "i")
    c.ok("a static member", **of(static, "static", group_instance_id="i"))
    c.any("a fenced static member", **of(static._replace(member_id="before"), "static", group_instance_id="i"))
    c.any("an unknown instance", **of(static, "static", group_instance_id="j"))
    create_topic(c, "t")
    modern = join_consumer_group(c, "modern", "t")
    c.any("a member of the consumer protocol", **of(modern, "modern"))
    c.broker.pass_time(40 * SECOND)
    c.error("a session that has expired", **of(newer))
    last = join_group(c, "last")
    c.ok("in the end", **of(last, "last"))


@script(LEAVE_GROUP)
def leave_group_script(c: Conversation) -> None:
    def of(group_id: str, *members: str, instances: tuple[str, ...] = ()) -> dict[str, Any]:
        if c.version < 3:
            return {"group_id": group_id, "member_id": members[0]}
        rows = [{"member_id": one, "reason": "enough"} for one in members]
        rows += [{"member_id": "", "group_instance_id": one} for one in instances]
        return {"group_id": group_id, "members": rows}

    member = join_group(c, "g")
    c.error("an unknown group", **of("none", "somebody"))
    c.error("an unknown member", **of("g", "somebody"))
    c.error("an empty group id", **of("", "somebody"))
    c.error("no member id", **of("g", ""))
    c.ok("a member", **of("g", member.member_id))
    c.error("a member that has left", **of("g", member.member_id))
    if c.version >= STATIC_FROM[LEAVE_GROUP]:
        join_group(c, "static", "i")
        other = join_group(c, "other")
        c.error("an unknown instance", **of("static", instances=("j",)))
        c.error(
            "another member's instance",
            group_id="static",
            members=[{"member_id": "somebody", "group_instance_id": "i"}],
        )
        c.ok("an instance", **of("static", instances=("i",)))
        c.error("a good and a bad one", **of("other", "somebody", other.member_id))
        c.any("no members", **of("other"))
    create_topic(c, "t")
    modern = join_consumer_group(c, "modern", "t")
    c.any("a member of the consumer protocol", **of("modern", modern.member_id))
    last = join_group(c, "last")
    c.broker.deny()
    c.error("denied", **of("last", last.member_id))
    c.broker.allow_everything()
    c.ok("in the end", **of("last", last.member_id))


@script(DESCRIBE_GROUPS)
def describe_groups_script(c: Conversation) -> None:
    def of(*groups: str, operations: bool = False) -> dict[str, Any]:
        return {"groups": list(groups), "include_authorized_operations": operations}

    find_coordinator(c, "g")
    c.any("an unknown group", **of("g"))
    join_group(c, "g")
    c.ok("a stable group", **of("g"))
    c.ok("operations", **of("g", operations=True))
    join_group(c, "static", "i")
    c.ok("a static member", **of("static"))
    create_topic(c, "t")
    commit_offset(c, "simple", "t", 3)
    c.ok("a group with offsets and no members", **of("simple"))
    join_consumer_group(c, "modern", "t")
    c.any("a group of the consumer protocol", **of("modern"))
    c.any("an empty group id", **of(""))
    c.any("several, one of them twice", **of("g", "none", "g"))
    c.raw("arranging: another member waits", c.frame(JOIN_GROUP, 3, wish("g")), on=c.broker.connect())
    c.ok("a group that rebalances", **of("g"))
    joined = c.arrange(JOIN_GROUP, 3, **wish("joining"))
    c.ok("a group that waits for its leader", **of("joining"))
    c.arrange(LEAVE_GROUP, 2, group_id="joining", member_id=joined["member_id"])
    c.ok("an empty group", **of("joining"))
    c.ok("in the end", **of("static", operations=True))


@script(LIST_GROUPS)
def list_groups_script(c: Conversation) -> None:
    c.any("before any group")
    find_coordinator(c, "g")
    c.any("no groups")
    create_topic(c, "t")
    commit_offset(c, "simple", "t", 3)
    join_group(c, "g")
    join_consumer_group(c, "modern", "t")
    c.ok("three groups")
    c.ok("stable ones", states_filter=["stable"])
    c.ok("empty ones, in capitals", states_filter=["EMPTY"])
    c.ok("several states", states_filter=["Stable", "Empty", "Dead"])
    c.any("an unknown state", states_filter=["asleep"])
    c.ok("classic ones", types_filter=["classic"])
    c.ok("consumer ones", types_filter=["Consumer"])
    c.any("an unknown type", types_filter=["share", "what"])
    c.ok("by state and type", states_filter=["Stable"], types_filter=["classic", "consumer"])


@script(DELETE_GROUPS)
def delete_groups_script(c: Conversation) -> None:
    def of(*groups: str) -> dict[str, Any]:
        return {"groups_names": list(groups)}

    find_coordinator(c, "g")
    create_topic(c, "t")
    commit_offset(c, "simple", "t", 3)
    join_group(c, "g")
    join_consumer_group(c, "modern", "t")
    c.error("an unknown group", **of("none"))
    c.error("a group with members", **of("g"))
    c.error("a group of the consumer protocol with members", **of("modern"))
    c.error("an empty group id", **of(""))
    c.any("an empty group, twice", **of("simple", "simple"))
    c.error("it is gone", **of("simple"))
    commit_offset(c, "one", "t", 3)
    c.error("a good one and bad ones", **of("one", "g", "none"))
    commit_offset(c, "two", "t", 3)
    c.ok("in the end", **of("two"))
