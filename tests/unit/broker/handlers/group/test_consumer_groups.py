"""ConsumerGroupHeartbeat and ConsumerGroupDescribe with real bytes: what is told, and what is refused."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

MINUTE = timedelta(minutes=1)
JOIN = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": MINUTE}


async def coordinate(kit: HandlerKit) -> None:
    """Somebody has asked for the coordinator, and it has read its log."""
    await kit.groups.leader_of("g")


async def beat(kit: HandlerKit, version: int = 1, **fields: Any) -> Any:
    fields = {"topic_partitions": None, "subscribed_topic_names": None, **fields}
    return await kit.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **fields)


async def join(kit: HandlerKit, version: int = 1, **fields: Any) -> Any:
    joining = {**JOIN, "subscribed_topic_names": ("t",), "topic_partitions": (), **fields}
    return await beat(kit, version, **joining)


async def describe(kit: HandlerKit, *groups: str, version: int = 1) -> Any:
    return (await kit.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, group_ids=groups)).groups


def told(reply: Any) -> dict[UUID, tuple[int, ...]]:
    return {row.topic_id: row.partitions for row in reply.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_joins_reports_and_leaves(kit: HandlerKit, version: int) -> None:
    topic_id = await kit.create("t", 2)
    await coordinate(kit)
    joined = await join(kit, version)
    assert (joined.error_code.value, joined.member_id, joined.member_epoch) == (0, "m", 1)
    assert joined.heartbeat_interval == timedelta(seconds=5)
    assert told(joined) == {topic_id: (0, 1)}
    reported = await beat(kit, version, group_id="g", member_id="m", member_epoch=1)
    assert (reported.error_code.value, reported.assignment) == (0, None)
    left = await beat(kit, version, group_id="g", member_id="m", member_epoch=-1)
    assert (left.error_code.value, left.member_epoch) == (0, -1)
    (group,) = await describe(kit, "g", version=version)
    assert (group.group_state, group.members) == ("Empty", ())


async def test_older_members_are_given_an_id(kit: HandlerKit) -> None:
    await coordinate(kit)
    assert (await join(kit, 0, member_id="")).member_id
    refused = await join(kit, 1, member_id="")
    assert (refused.error_code.value, refused.error_message) == (42, "the member id is empty")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": "g" * 9_000}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout": timedelta(milliseconds=-1)}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_what_makes_no_sense_is_refused_and_leaves_nothing_behind(
    kit: HandlerKit, fields: dict[str, Any], code: ErrorCode
) -> None:
    await coordinate(kit)
    reply = await join(kit, **fields)
    assert reply.error_code.value == code
    assert reply.error_message
    assert [listing for machine in kit.groups.machines() for listing in machine.listings()] == []


async def test_nobody_joins_a_group_or_reads_a_topic_without_leave(kit: HandlerKit) -> None:
    await kit.create("t")
    await coordinate(kit)
    kit.authorizer = DenyAll()
    assert (await join(kit)).error_code.value == ErrorCode.GROUP_AUTHORIZATION_FAILED
    (group,) = await describe(kit, "g")
    assert group.error_code.value == ErrorCode.GROUP_AUTHORIZATION_FAILED
    kit.authorizer = DenyAll((ResourceType.GROUP, Operation.READ))
    assert (await join(kit)).error_code.value == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_an_expression_finds_only_topics_that_the_caller_may_see(kit: HandlerKit) -> None:
    pytest.importorskip("re2", reason="expressions are matched by google-re2")
    seen, _ = await kit.create("seen"), await kit.create("secret")
    await coordinate(kit)
    kit.authorizer = DenyAll((ResourceType.GROUP, Operation.READ), names={"seen"})
    joined = await join(kit, subscribed_topic_names=None, subscribed_topic_regex="se.*")
    assert told(joined) == {seen: (0,)}


async def test_a_group_is_described_with_what_its_members_have_and_should_have(kit: HandlerKit) -> None:
    topic_id = await kit.create("t", 2)
    await coordinate(kit)
    await join(kit, rack_id="here")
    await join(kit, member_id="n")
    group, unknown = await describe(kit, "g", "h")
    assert unknown.error_code.value == ErrorCode.GROUP_ID_NOT_FOUND
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
    assert group.assignor_name == "uniform"
    first, second = group.members
    assert (first.client_id, first.client_host, first.rack_id, first.member_type) == ("test", "/127.0.0.1", "here", 1)
    assert first.subscribed_topic_names == ("t",)
    assert [row.partitions for row in first.assignment.topic_partitions] == [(0, 1)]
    (target,) = second.target_assignment.topic_partitions
    assert (target.topic_id, target.topic_name, len(target.partitions)) == (topic_id, "t", 1)
    assert second.assignment.topic_partitions == ()


async def test_a_group_may_have_its_partitions_dealt_out_less_often(kit: HandlerKit) -> None:
    topic_id = await kit.create("t", 2)
    await coordinate(kit)
    config = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "10000"}
    resource = {"resource_type": 32, "resource_name": "g", "configs": [config]}
    altered = await kit.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
    assert altered.responses[0].error_code.value == 0
    await join(kit)
    assert told(await join(kit, member_id="n")) == {}
    (group,) = await describe(kit, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Assigning", 2, 1)
    kit.clock.advance_ms(10_000)
    asked = await beat(kit, group_id="g", member_id="m", member_epoch=1)
    assert [len(partitions) for partitions in told(asked).values()] == [1], "it is to give one up"
    let_go = [{"topic_id": topic_id, "partitions": told(asked)[topic_id]}]
    await beat(kit, group_id="g", member_id="m", member_epoch=1, topic_partitions=let_go)
    given = await beat(kit, group_id="g", member_id="n", member_epoch=1)
    assert [len(partitions) for partitions in told(given).values()] == [1]


async def test_the_new_protocol_can_be_switched_off() -> None:
    kit = await HandlerKit(group_coordinator_rebalance_protocols="classic").start()
    assert (await join(kit)).error_code.value == ErrorCode.UNSUPPORTED_VERSION
    await kit.close()
