"""A consumer group in a simulated cluster: members that join, commit what they own, leave, and fall silent.

One member at a time owns all partitions. It begins where the group has got to, and commits one offset after the other;
so what the group has committed only ever grows, whatever becomes of its coordinators, and whoever asks for it is told
no less than was acknowledged before the question.
"""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from headrace.client.aio import groups
from headrace.client.aio.broker_connection import ConnectionLost
from headrace.client.aio.groups import Membership, Offset, Protocol
from headrace.client.core.errors import KafkaApiError
from headrace.core.topic import OFFSETS_TOPIC
from headrace.model.errors import ErrorCode
from tests.simulation.cluster_calls import GROUP, SimCoordinators
from tests.simulation.cluster_clients import TOPIC, Client, Until
from tests.simulation.cluster_promises import OffsetLost

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

GROUP_ID = "g"
SESSION_MS = 1500
REBALANCE_MS = 1000
SYNC_S = 2.0
ALL = b"all"  # the share of the member that owns everything; the others have nothing


class OffsetLedger:
    """What was committed for each partition, as far as members know."""

    def __init__(self) -> None:
        self._acked: dict[int, int] = defaultdict(lambda: -1)
        self._asked: dict[int, int] = defaultdict(lambda: -1)

    def asks(self, offsets: dict[int, int]) -> None:
        for index, offset in offsets.items():
            self._asked[index] = max(self._asked[index], offset)

    def acked(self, offsets: dict[int, int]) -> None:
        for index, offset in offsets.items():
            self._acked[index] = max(self._acked[index], offset)

    def least(self, count: int) -> dict[int, int]:
        return {index: self._acked[index] for index in range(count)}

    def told(self, offsets: dict[int, int], least: dict[int, int]) -> None:
        for index, offset in offsets.items():
            if offset < least[index]:
                raise OffsetLost(f"{TOPIC}-{index}: {least[index]} was acknowledged, and {offset} is told later")
            if offset > self._asked[index]:
                raise OffsetLost(f"{TOPIC}-{index}: {offset} is told, and nobody has committed that")


class GroupClient(Client):
    def __init__(self, world: "ClusterWorld", number: int, ledger: OffsetLedger) -> None:
        super().__init__(world, number)
        self.ledger = ledger
        self.coordinators: Any = SimCoordinators(self, GROUP)

    async def committed(self) -> dict[int, int]:
        """How far the group has come, checked against what is known."""
        count = self.world.partition_count
        least = self.ledger.least(count)
        found = await groups.committed(self.coordinators, GROUP_ID, {TOPIC: range(count)})
        offsets = {one.partition: one.offset for one in found}
        self.ledger.told(offsets, least)
        return offsets


class GroupMember(GroupClient):
    def __init__(self, world: "ClusterWorld", number: int, ledger: OffsetLedger) -> None:
        super().__init__(world, number, ledger)
        self._member_id = ""

    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(0.4)
            try:
                who, share = await self._join()
                await self._take_part(who, share, until)
            except ConnectionLost:
                continue
            except KafkaApiError as refused:
                if refused.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    self._member_id = ""

    async def _join(self) -> tuple[Membership, bytes]:
        joined = await groups.join(
            self.coordinators,
            Membership(group_id=GROUP_ID, member_id=self._member_id),
            "sim",
            [Protocol("one owns all", str(self.number).encode())],
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self._member_id = joined.member_id
        who = Membership(group_id=GROUP_ID, member_id=joined.member_id, generation_id=joined.generation_id)
        shares: dict[str, bytes] = {}
        if joined.leader == joined.member_id:
            members = sorted(joined.members, key=lambda one: one.metadata)
            shares = {members[joined.generation_id % len(members)].member_id: ALL}
        self.world.note("joined", self.number, joined.generation_id, bool(shares))
        return who, await groups.sync(self.coordinators, who, shares, wait_s=SYNC_S)

    async def _take_part(self, who: Membership, share: bytes, until: Until) -> None:
        offsets = await self.committed() if share == ALL else {}
        while not until():
            await self.pause(0.3)
            if self.random.random() < 0.02:
                await asyncio.sleep(2 * SESSION_MS / 1000)  # it is thought dead, and does not know
            if self.random.random() < 0.03:
                await groups.leave(self.coordinators, who)
                self._member_id = ""
                return
            if not offsets or self.random.random() < 0.3:
                await groups.heartbeat(self.coordinators, who)
                continue
            offsets = {index: offset + 1 for index, offset in offsets.items()}
            await self._commit(who, offsets)

    async def _commit(self, who: Membership, offsets: dict[int, int]) -> None:
        self.ledger.asks(offsets)
        rows = [Offset(TOPIC, index, offset) for index, offset in offsets.items()]
        await groups.commit(self.coordinators, who, rows)
        self.ledger.acked(offsets)
        self.world.note("committed", self.number, offsets)


class OffsetWatcher(GroupClient):
    """Belongs to nobody, and asks now and then how far the group has come."""

    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(1.0)
            try:
                await self.committed()
            except (ConnectionLost, KafkaApiError):
                continue


class Groups:
    """The part of a life that has to do with groups."""

    topic: str | None = OFFSETS_TOPIC

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._ledger = OffsetLedger()
        self.clients: list[Client] = [GroupMember(world, number, self._ledger) for number in (20, 21)]
        self.clients.append(OffsetWatcher(world, 22, self._ledger))

    async def prepare(self) -> None:
        node = self._world.nodes[0]
        assert node.broker is not None
        await node.run(node.broker.groups.leader_of(GROUP_ID))

    async def check(self) -> None:
        asker = GroupClient(self._world, 23, self._ledger)
        answers: list[dict[int, int]] = []

        async def ask() -> None:
            while not answers:
                try:
                    answers.append(await asker.committed())
                except (ConnectionLost, KafkaApiError):
                    await asker.pause(0.1)

        await self._world.within(ask(), "the group's offsets can be asked for")
