"""Members of classic groups and transactional producers without any comfort: each says what the test tells it to."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from headrace.broker.server import Broker
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from tests.integration.rules.kit import SECONDS_MAX, Client

GROUP = "g"
SESSION_MS = 30_000


def subscription(topic: str) -> bytes:
    """What a consumer of this topic says of itself, in version 1 and without what it owns."""
    return b"\x00\x01\x00\x00\x00\x01" + len(topic).to_bytes(2, "big") + topic.encode()


class Member:
    """A member with a connection of its own, which may wait for an answer while others go on."""

    def __init__(self, client: Client, *, instance_id: str | None = None, rebalance_ms: int = SESSION_MS) -> None:
        self.client = client
        self.instance_id = instance_id
        self.rebalance_ms = rebalance_ms
        self.member_id = ""
        self.generation = -1

    def ask_to_join(self, topic: str = "t") -> None:
        self.client.send(
            ApiKey.JOIN_GROUP,
            group_id=GROUP,
            session_timeout=SESSION_MS,
            rebalance_timeout=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[{"name": "cooperative-sticky", "metadata": subscription(topic)}],
        )

    async def joined(self) -> Any:
        """The answer to a join. Who is told to come back with an id does so."""
        answer = await self.client.receive()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.ask_to_join()
            answer = await self.client.receive()
        assert answer.error_code == ErrorCode.NONE, answer
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def ask_for_share(self, **shares: bytes) -> None:
        rows = [{"member_id": name, "assignment": share} for name, share in shares.items()]
        self.client.send(
            ApiKey.SYNC_GROUP,
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=rows,
        )

    async def share(self) -> bytes:
        answer = await self.client.receive()
        assert answer.error_code == ErrorCode.NONE, answer
        return bytes(answer.assignment)

    async def heartbeat(self) -> ErrorCode:
        answer = await self.client.ask(
            ApiKey.HEARTBEAT,
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode(answer.error_code)

    async def commit(self, offset: int, generation: int | None = None) -> ErrorCode:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        answer = await self.client.ask(
            ApiKey.OFFSET_COMMIT,
            9,
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[{"name": "t", "partitions": [row]}],
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def told_to_rejoin(self) -> None:
        """Until a heartbeat says that the group is rebalancing: somebody else's join may still be on its way."""
        async with asyncio.timeout(SECONDS_MAX):
            while (code := await self.heartbeat()) == ErrorCode.NONE:
                pass
        assert code == ErrorCode.REBALANCE_IN_PROGRESS


class Company:
    """Members of one group, and what it takes to bring them into the same generation."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        self._broker, self._stack = broker, stack

    async def newcomer(self, instance_id: str | None = None, rebalance_ms: int = SESSION_MS) -> Member:
        client = await self._stack.enter_async_context(Client.of(self._broker))
        return Member(client, instance_id=instance_id, rebalance_ms=rebalance_ms)

    async def settle(self, *members: Member) -> None:
        """One after the other comes; those who were there before join again."""
        for at, newcomer in enumerate(members):
            newcomer.ask_to_join()
            joining = asyncio.create_task(newcomer.joined())
            for earlier in members[:at]:
                await earlier.told_to_rejoin()
                earlier.ask_to_join()
            for earlier in members[:at]:
                await earlier.joined()
            await joining
            await self.propagate_assignment(*members[: at + 1])

    async def join_again(self, leader: Member, *others: Member) -> None:
        """Everybody, in one more generation: what a member says of itself counts from its next join on."""
        leader.ask_to_join()
        for one in others:
            await one.told_to_rejoin()
            one.ask_to_join()
        for one in (leader, *others):
            await one.joined()
        await self.propagate_assignment(leader, *others)

    @staticmethod
    async def propagate_assignment(leader: Member, *others: Member) -> None:
        everybody = (leader, *others)
        leader.ask_for_share(**{one.member_id: one.member_id.encode() for one in everybody})
        for one in others:
            one.ask_for_share()
        for one in everybody:
            assert await one.share() == one.member_id.encode()


class Owner:
    """A transactional producer that commits offsets."""

    def __init__(self, client: Client, version: int) -> None:
        self.client = client
        self._version = version
        self._identity: dict[str, Any] = {}

    async def begin(self, name: str) -> None:
        answer = await self.client.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout=60_000)
        assert answer.error_code == ErrorCode.NONE, answer
        self._identity = {
            "transactional_id": name,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }

    async def commit_offset(self, offset: int) -> None:
        if self._version < 5:
            added = await self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **self._identity, group_id=GROUP)
            assert added.error_code == ErrorCode.NONE, added
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [row]}]
        answer = await self.client.ask(
            ApiKey.TXN_OFFSET_COMMIT, self._version, **self._identity, group_id=GROUP, topics=topics
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE, answer

    async def end(self, *, commit: bool) -> None:
        version = 5 if self._version >= 5 else 3
        answer = await self.client.ask(ApiKey.END_TXN, version, **self._identity, committed=commit)
        assert answer.error_code == ErrorCode.NONE, answer


async def fetched_offset(client: Client, version: int, *, require_stable: bool) -> tuple[ErrorCode, int]:
    topics = [{"name": "t", "partition_indexes": (0,)}]
    if version < 8:
        answer = await client.ask(
            ApiKey.OFFSET_FETCH, version, group_id=GROUP, topics=topics, require_stable=require_stable
        )
    else:
        groups = [{"group_id": GROUP, "topics": topics}]
        whole = await client.ask(ApiKey.OFFSET_FETCH, version, groups=groups, require_stable=require_stable)
        (answer,) = whole.groups
    row = answer.topics[0].partitions[0]
    return ErrorCode(row.error_code), row.committed_offset
