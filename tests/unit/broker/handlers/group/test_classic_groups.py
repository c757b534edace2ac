"""JoinGroup to OffsetDelete: what clients of every version are told."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from headrace.protocol.api import SERVED, ApiKey
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit


def versions(api: ApiKey) -> range:
    return range(SERVED[api].lowest, SERVED[api].highest + 1)


def subscription(topic: str) -> bytes:
    return b"\x00\x01\x00\x00\x00\x01" + len(topic).to_bytes(2, "big") + topic.encode()


@pytest.fixture
async def kit() -> Any:
    started = await HandlerKit(
        group_initial_rebalance_delay_ms="0", offsets_topic_num_partitions="3", num_partitions="2"
    ).start()
    await started.create("t", 2)
    await started.groups.leader_of("g")
    yield started
    await started.groups.close()
    await started.partitions.close()
    await started.controller.stop()


def fits(api: ApiKey, version: int, **fields: Any) -> dict[str, Any]:
    """Leaves out what the version does not have."""
    from headrace.protocol.codec import message_class
    from headrace.protocol.schema import describe

    known = {field.name for field in describe(message_class(api, version, "request"))}
    return {name: value for name, value in fields.items() if name in known}


async def join(kit: HandlerKit, version: int = 9, member_id: str = "", **fields: Any) -> Any:
    asked = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        **fields,
    }
    return await kit.ask(ApiKey.JOIN_GROUP, version, **fits(ApiKey.JOIN_GROUP, version, **asked))


async def joined(kit: HandlerKit, version: int = 9, **fields: Any) -> Any:
    answer = await join(kit, version, **fields)
    if answer.error_code.value == 79:
        answer = await join(kit, version, answer.member_id, **fields)
    assert answer.error_code.value == 0
    return answer


async def sync(kit: HandlerKit, member: Any, version: int = 5, **assignments: bytes) -> Any:
    asked = {
        "group_id": "g",
        "generation_id": member.generation_id,
        "member_id": member.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member.member_id, "assignment": share} for share in assignments.values()],
    }
    return await kit.ask(ApiKey.SYNC_GROUP, version, **fits(ApiKey.SYNC_GROUP, version, **asked))


async def commit(kit: HandlerKit, version: int = 9, *, group: str = "g", topic: Any = "t", **fields: Any) -> Any:
    partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "note", **fields.pop("row", {})}]
    named = {"topic_id": topic} if version >= 10 else {"name": topic}
    asked = {"group_id": group, "topics": [{**named, "partitions": partitions}], **fields}
    return await kit.ask(ApiKey.OFFSET_COMMIT, version, **fits(ApiKey.OFFSET_COMMIT, version, **asked))


async def fetch(kit: HandlerKit, version: int = 9, *, group: str = "g", topic: Any = "t", **fields: Any) -> Any:
    """The group's row, whatever the version calls it."""
    named = {"topic_id": topic} if version >= 10 else {"name": topic}
    topics = None if topic is None else [{**named, "partition_indexes": (0, 1)}]
    if version >= 8:
        answer = await kit.ask(ApiKey.OFFSET_FETCH, version, groups=[{"group_id": group, "topics": topics}], **fields)
        return answer.groups[0]
    return await kit.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=topics, **fields)


# Finding, joining, leaving


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
async def test_the_coordinator_is_found_and_its_topic_made(version: int) -> None:
    kit = await HandlerKit(offsets_topic_num_partitions="7").start()
    asked = {"coordinator_keys": ("g", "h")} if version >= 4 else {"key": "g"}
    answer = await kit.ask(ApiKey.FIND_COORDINATOR, version, **asked)
    rows = answer.coordinators if version >= 4 else [answer]
    assert [(row.error_code.value, row.node_id, row.host, row.port) for row in rows] == [
        (0, 1, "127.0.0.1", 9092)
    ] * len(rows)
    topic = kit.image.topics["__consumer_offsets"]
    assert (len(topic.partitions), topic.configs["cleanup.policy"]) == (7, "compact")
    await kit.partitions.close()
    await kit.controller.stop()


async def test_there_are_no_coordinators_of_unknown_types(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.FIND_COORDINATOR, key_type=9, coordinator_keys=("x",))
    assert answer.coordinators[0].error_code.value == 42


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_a_member_joins_syncs_and_leaves(kit: HandlerKit, version: int) -> None:
    member = await joined(kit, version)
    assert (member.generation_id, member.leader, member.protocol_name) == (1, member.member_id, "range")
    assert [one.metadata for one in member.members] == [subscription("t")]
    older = min(version, SERVED[ApiKey.SYNC_GROUP].highest)
    share = await sync(kit, member, older, mine=b"share")
    assert (share.error_code.value, share.assignment) == (0, b"share")
    older = min(version, SERVED[ApiKey.HEARTBEAT].highest)
    beat = await kit.ask(ApiKey.HEARTBEAT, older, group_id="g", generation_id=1, member_id=member.member_id)
    assert beat.error_code.value == 0
    older = min(version, SERVED[ApiKey.LEAVE_GROUP].highest)
    leaving = {"members": [{"member_id": member.member_id}]} if older >= 3 else {"member_id": member.member_id}
    left = await kit.ask(ApiKey.LEAVE_GROUP, older, group_id="g", **leaving)
    assert left.error_code.value == 0
    again = await kit.ask(ApiKey.LEAVE_GROUP, older, group_id="g", **leaving)
    assert (again.members[0] if older >= 3 else again).error_code.value == 25


async def test_rule_21_newer_clients_must_come_back_with_an_id(kit: HandlerKit) -> None:
    answer = await join(kit, 4)
    assert (answer.error_code.value, answer.member_id.startswith("test-")) == (79, True)
    assert (await join(kit, 3)).error_code.value == 0


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
async def test_sessions_have_limits(kit: HandlerKit, session_ms: int) -> None:
    assert (await join(kit, session_timeout=session_ms)).error_code.value == 26


async def test_a_group_has_a_name(kit: HandlerKit) -> None:
    assert (await join(kit, group_id="")).error_code.value == 24
    assert (await kit.ask(ApiKey.HEARTBEAT, group_id="", generation_id=1, member_id="x")).error_code.value == 24


async def test_a_join_waits_for_the_others(kit: HandlerKit) -> None:
    first = await joined(kit)
    await sync(kit, first, mine=b"all")
    waiting = asyncio.create_task(joined(kit))
    await asyncio.sleep(0)
    beat = await kit.ask(ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id=first.member_id)
    while beat.error_code.value == 0:
        await asyncio.sleep(0)
        beat = await kit.ask(ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id=first.member_id)
    assert beat.error_code.value == 27
    first_again = await join(kit, 9, first.member_id)
    second = await waiting
    assert (first_again.generation_id, second.generation_id, second.leader) == (2, 2, first.member_id)
    assert len(first_again.members) == 2
    assert second.members == ()


# Offsets


@pytest.mark.parametrize("version", range(2, 10))
async def test_rule_33_offsets_are_found_again_with_their_notes(kit: HandlerKit, version: int) -> None:
    answer = await commit(kit, version)
    assert [(row.partition_index, row.error_code.value) for row in answer.topics[0].partitions] == [(0, 0)]
    found = await fetch(kit, min(version, 9))
    rows = [(row.partition_index, row.committed_offset, row.metadata) for row in found.topics[0].partitions]
    assert rows == [(0, 5, "note"), (1, -1, "")]


@pytest.mark.parametrize("version", range(1, 10))
async def test_rule_17_the_leader_epoch_of_a_commit_is_told_to_who_fetches_it(kit: HandlerKit, version: int) -> None:
    await commit(kit, 6, row={"committed_leader_epoch": 3})
    found = await fetch(kit, version)
    row = found.topics[0].partitions[0]
    assert (row.committed_offset, row.error_code.value) == (5, 0)
    if version >= 5:
        assert row.committed_leader_epoch == 3
    if version >= 2:
        everything = await fetch(kit, version, topic=None)
        assert [(topic.name, len(topic.partitions)) for topic in everything.topics] == [("t", 1)]


async def test_topics_have_ids_in_the_newest_versions(kit: HandlerKit) -> None:
    topic_id = kit.image.topics["t"].topic_id
    answer = await commit(kit, 10, topic=topic_id)
    assert (answer.topics[0].topic_id, answer.topics[0].partitions[0].error_code.value) == (topic_id, 0)
    for wanted in (topic_id, None):
        found = await fetch(kit, 10, topic=wanted)
        assert found.topics[0].topic_id == topic_id
        assert found.topics[0].partitions[0].committed_offset == 5
    answer = await commit(kit, 10, topic=uuid4())
    assert answer.topics[0].partitions[0].error_code.value == 100
    assert (await fetch(kit, 10, topic=uuid4())).topics[0].partitions[0].error_code.value == 100


async def test_commits_for_topics_that_are_not_there_are_refused(kit: HandlerKit) -> None:
    assert (await commit(kit, topic="nope")).topics[0].partitions[0].error_code.value == 3
    assert (await commit(kit, row={"partition_index": 2})).topics[0].partitions[0].error_code.value == 3


async def test_a_long_note_is_refused(kit: HandlerKit) -> None:
    answer = await commit(kit, row={"committed_metadata": "x" * 4097})
    assert answer.topics[0].partitions[0].error_code.value == 12


async def test_only_members_commit_while_there_are_some(kit: HandlerKit) -> None:
    member = await joined(kit)
    await sync(kit, member)
    assert (await commit(kit)).topics[0].partitions[0].error_code.value == 25
    generation = "generation_id_or_member_epoch"
    answer = await commit(kit, member_id=member.member_id, **{generation: 0})
    assert answer.topics[0].partitions[0].error_code.value == 22
    answer = await commit(kit, member_id=member.member_id, **{generation: 1})
    assert answer.topics[0].partitions[0].error_code.value == 0


async def test_offsets_of_a_deleted_topic_are_forgotten(kit: HandlerKit) -> None:
    await commit(kit)
    await kit.controller.delete_topics(["t"])
    await kit.create("t", 2)
    found = await fetch(kit)
    assert found.topics[0].partitions[0].committed_offset == -1


async def test_many_groups_are_fetched_at_once(kit: HandlerKit) -> None:
    await commit(kit, group="one")
    answer = await kit.ask(
        ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": "one", "topics": None}, {"group_id": "two", "topics": None}]
    )
    assert [(group.group_id, len(group.topics)) for group in answer.groups] == [("one", 1), ("two", 0)]


# Looking and deleting


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_groups_are_described(kit: HandlerKit, version: int) -> None:
    member = await joined(kit)
    await sync(kit, member, mine=b"share")
    answer = await kit.ask(ApiKey.DESCRIBE_GROUPS, version, groups=("g", "nope"))
    group, unknown = answer.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (row,) = group.members
    assert (row.client_id, row.client_host, row.member_assignment) == ("test", "/127.0.0.1", b"share")
    assert (unknown.group_state, unknown.error_code.value) == ("Dead", 69 if version >= 6 else 0)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_groups_are_listed(kit: HandlerKit, version: int) -> None:
    await sync(kit, await joined(kit))
    await commit(kit, group="simple")
    answer = await kit.ask(ApiKey.LIST_GROUPS, version)
    assert {(one.group_id, one.protocol_type) for one in answer.groups} == {("g", "consumer"), ("simple", "")}
    if version >= 4:
        answer = await kit.ask(ApiKey.LIST_GROUPS, version, states_filter=("stable",))
        assert [one.group_id for one in answer.groups] == ["g"]
    if version >= 5:
        answer = await kit.ask(ApiKey.LIST_GROUPS, version, types_filter=("consumer",))
        assert answer.groups == ()


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_groups_without_members_are_deleted(kit: HandlerKit, version: int) -> None:
    member = await joined(kit)
    await sync(kit, member)
    await commit(kit, group="simple")
    answer = await kit.ask(ApiKey.DELETE_GROUPS, version, groups_names=("g", "simple", "nope"))
    assert [(row.group_id, row.error_code.value) for row in answer.results] == [("g", 68), ("simple", 0), ("nope", 69)]
    assert (await fetch(kit, group="simple", topic=None)).topics == ()


async def test_offsets_that_members_do_not_need_can_be_deleted(kit: HandlerKit) -> None:
    await kit.create("u")
    await commit(kit)
    await commit(kit, topic="u")
    await sync(kit, await joined(kit))
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u", "nope")]
    answer = await kit.ask(ApiKey.OFFSET_DELETE, group_id="g", topics=topics)
    assert [topic.partitions[0].error_code.value for topic in answer.topics] == [86, 0, 3]
    found = await fetch(kit, topic=None)
    assert [topic.name for topic in found.topics] == ["t"]
    assert (await kit.ask(ApiKey.OFFSET_DELETE, group_id="nope", topics=topics)).error_code.value == 69


async def test_who_may_not_see_a_group_is_told_nothing_of_it(kit: HandlerKit) -> None:
    await commit(kit)
    kit.authorizer = DenyAll()
    assert (await fetch(kit)).error_code.value == 30
    assert (await kit.ask(ApiKey.LIST_GROUPS)).groups == ()
    assert (await commit(kit)).topics[0].partitions[0].error_code.value == 30
