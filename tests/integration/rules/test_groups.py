"""The rules that other brokers broke, each by its number, over a real socket: groups, and offsets in transactions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from headrace.broker.server import Broker
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from tests.integration.rules.group_kit import GROUP, Company, Member, Owner, fetched_offset
from tests.integration.rules.kit import SECONDS_MAX, Client, running

CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
REBALANCE_MS = 5_000  # where it has to pass: longer than what holds a busy machine up


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running(configs=CONFIGS) as started, Client.of(started) as first:
        for key_type in (0, 1):
            await first.ask(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["any"])
        await first.create("t")
        yield started


@pytest.fixture
async def company(broker: Broker) -> AsyncIterator[Company]:
    async with AsyncExitStack() as stack:
        yield Company(broker, stack)


# ── 15: offsets in an open transaction ──


@pytest.mark.parametrize("version", [7, 8, 9])
@pytest.mark.parametrize("txn_version", [3, 5], ids=["older protocol", "newer protocol"])
@pytest.mark.parametrize("commit", [True, False], ids=["commits", "aborts"])
async def test_rule_15_offsets_are_unstable_while_a_transaction_holds_some_and_then_are_stable_again(
    company: Company, version: int, txn_version: int, commit: bool
) -> None:
    reader, owner = (await company.newcomer()).client, Owner((await company.newcomer()).client, txn_version)
    await owner.begin("x")
    await owner.commit_offset(7)
    for _ in range(3):
        code, offset = await fetched_offset(reader, version, require_stable=True)
        assert (code, offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert await fetched_offset(reader, version, require_stable=False) == (ErrorCode.NONE, -1), "nobody asked"
    await owner.end(commit=commit)
    async with asyncio.timeout(SECONDS_MAX):  # the markers follow the answer
        while (found := await fetched_offset(reader, version, require_stable=True))[0] != ErrorCode.NONE:
            assert found[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert found == (ErrorCode.NONE, 7 if commit else -1)


# ── 22: static members ──


async def test_rule_22_a_static_member_that_comes_back_replaces_the_old_one_without_a_rebalance(
    company: Company,
) -> None:
    leader, old = await company.newcomer("i1"), await company.newcomer("i2")
    await company.settle(leader, old)
    new = await company.newcomer("i2")
    new.ask_to_join()
    answer = await new.joined()
    assert answer.member_id != old.member_id
    assert answer.generation_id == old.generation, "a stable group with the same subscription does not rebalance"
    new.ask_for_share()
    assert await new.share() == old.member_id.encode(), "what its former self had"
    assert await leader.heartbeat() == ErrorCode.NONE, "and nobody else is troubled"
    assert await old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert await old.commit(5) == ErrorCode.FENCED_INSTANCE_ID
    assert await new.heartbeat() == ErrorCode.NONE
    assert await new.commit(6) == ErrorCode.NONE


async def test_rule_22_a_static_member_with_another_subscription_is_worth_a_rebalance(company: Company) -> None:
    leader, old = await company.newcomer("i1"), await company.newcomer("i2")
    await company.settle(leader, old)
    new = await company.newcomer("i2")
    new.ask_to_join("another")
    await leader.told_to_rejoin()
    leader.ask_to_join()
    assert (await leader.joined()).generation_id == old.generation + 1
    assert (await new.joined()).generation_id == old.generation + 1


async def test_rule_22_who_waits_for_its_join_is_told_that_it_was_replaced(company: Company) -> None:
    leader, old = await company.newcomer("i1"), await company.newcomer("i2")
    await company.settle(leader, old)
    old.ask_to_join("another")  # a rebalance begins, and it waits for the leader
    await leader.told_to_rejoin()
    new = await company.newcomer("i2")
    new.ask_to_join()
    assert (await old.client.receive()).error_code == ErrorCode.FENCED_INSTANCE_ID
    leader.ask_to_join()
    assert len((await leader.joined()).members) == 2
    assert (await new.joined()).generation_id == leader.generation


# ── 23: generations ──


async def test_rule_23_members_are_told_of_a_rebalance_and_stale_commits_are_refused(company: Company) -> None:
    """Cooperative members keep what they have while they join: what they commit meanwhile counts."""
    first, second = await company.newcomer(), await company.newcomer()
    await company.settle(first)
    stale = first.generation
    assert await first.commit(1) == ErrorCode.NONE
    second.ask_to_join()
    joining = asyncio.create_task(second.joined())
    await first.told_to_rejoin()
    assert await first.commit(2) == ErrorCode.NONE
    first.ask_to_join()
    await first.joined()
    await joining
    assert (first.generation, second.generation) == (stale + 1, stale + 1)
    assert await first.commit(3, generation=stale) == ErrorCode.ILLEGAL_GENERATION
    assert await first.commit(3) == ErrorCode.REBALANCE_IN_PROGRESS, "nothing is shared out yet"
    await company.propagate_assignment(first, second)
    assert await first.commit(3, generation=stale) == ErrorCode.ILLEGAL_GENERATION
    assert await fetched_offset(first.client, 9, require_stable=True) == (ErrorCode.NONE, 2)
    assert await first.commit(3) == ErrorCode.NONE


# ── 24: the rebalance timeout ──


async def test_rule_24_at_the_rebalance_timeout_only_dynamic_members_that_stayed_away_are_removed(
    company: Company,
) -> None:
    back, static, away = [await company.newcomer(instance_id) for instance_id in (None, "i1", None)]
    await company.settle(back, static, away)
    for one in (back, static, away):
        one.rebalance_ms = REBALANCE_MS
    await company.join_again(back, static, away)
    newcomer = await company.newcomer(rebalance_ms=REBALANCE_MS)
    newcomer.ask_to_join()
    joining = asyncio.create_task(newcomer.joined())
    await back.told_to_rejoin()
    back.ask_to_join()
    answer = await back.joined()  # after the timeout: two have not come
    await joining
    assert {row.member_id for row in answer.members} == {back.member_id, static.member_id, newcomer.member_id}
    assert await away.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert await static.heartbeat() == ErrorCode.ILLEGAL_GENERATION, "it is a member, and has to join again"
    static.ask_to_join()
    assert (await static.joined()).member_id == static.member_id


# ── 33: what clients' own suites found elsewhere ──


async def test_rule_33_everybody_who_joins_at_once_gets_in_and_gets_a_share(company: Company) -> None:
    """Ten members knock at the same moment, each first without an id: nobody is unknown, no share is empty."""
    members = [await company.newcomer() for _ in range(10)]
    for one in members:
        one.ask_to_join()
    shares = await asyncio.gather(*(live_until_shared(one, len(members)) for one in members))
    assert {one.generation for one in members} == {members[0].generation}
    assert shares == [one.member_id.encode() for one in members]


async def live_until_shared(member: Member, count: int) -> bytes:
    """As consumers do: join, share out or ask for a share, join again whenever the group wants it."""
    while True:
        answer = await member.joined()  # fails at UNKNOWN_MEMBER_ID
        rows = {row.member_id: row.member_id.encode() for row in answer.members}
        member.ask_for_share(**rows)
        synced = await member.client.receive()
        if synced.error_code == ErrorCode.NONE:
            assert synced.assignment == member.member_id.encode(), "no share is empty"
            if await is_complete(member, count):
                return bytes(synced.assignment)
        else:
            assert synced.error_code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION), synced
        member.ask_to_join()


async def is_complete(member: Member, count: int) -> bool:
    """Whether the group stays as it is: everybody is in it. False once somebody else wants to join."""
    async with asyncio.timeout(SECONDS_MAX):
        while await member.heartbeat() == ErrorCode.NONE:
            described = await member.client.ask(ApiKey.DESCRIBE_GROUPS, groups=[GROUP])
            (group,) = described.groups
            if group.group_state == "Stable" and len(group.members) == count:
                return True
    return False
