"""Requests whose response is lost on its way: which ones are sent again, and what callers get for the others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any

import pytest

from headrace.client.aio import admin, groups
from headrace.client.aio import admin as topic_calls
from headrace.client.aio.client import Cluster, CoordinatorCache
from headrace.client.aio.fetch import LATEST, fetch, offsets_at
from headrace.client.aio.groups import Membership, Offset, Protocol
from headrace.client.aio.produce import send_batch
from headrace.client.core.consumer_protocol import PROTOCOL_TYPE, RANGE, encode_subscription
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalBroker

HOST = "127.0.0.1"
# Longer than any of these tests takes: no request is given up because of the time.
TIMEOUT_S = 120.0
_HEAD = Struct(">ih")  # length, API key
PRODUCE, FETCH, LIST_OFFSETS, METADATA, COMMIT, FETCH_OFFSETS = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC, CREATE, DELETE, GROW = 10, 11, 12, 13, 14, 19, 20, 37
DELETE_GROUPS = 42


class LossyWire:
    """Between a client and a broker: passes every request on, and hangs up instead of passing some responses back."""

    def __init__(self) -> None:
        self.target = 0
        self.sent: Counter[int] = Counter()
        self._losses: Counter[int] = Counter()

    def lose(self, api_key: int) -> None:
        """The next response of this API; requests are counted from now on."""
        self._losses[api_key] = 1
        self.sent.clear()

    async def serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(HOST, self.target)
        try:
            while True:
                head = await near.readexactly(_HEAD.size)
                length, api_key = _HEAD.unpack(head)
                forth.write(head + await near.readexactly(length + 4 - _HEAD.size))
                answer_length = await far.readexactly(4)
                answer = await far.readexactly(int.from_bytes(answer_length))
                self.sent[api_key] += 1
                if self._losses[api_key]:
                    self._losses[api_key] -= 1
                    return
                back.write(answer_length + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            back.close()
            forth.close()


class World:
    def __init__(self, cluster: Cluster, wire: LossyWire) -> None:
        self.cluster, self.wire = cluster, wire
        self.coordinators = CoordinatorCache(cluster)

    async def is_sent_once(self, api_key: int, call: Callable[[], Awaitable[Any]]) -> None:
        self.wire.lose(api_key)
        with pytest.raises(UnknownOutcomeError, match="may have been carried out, or not"):
            await call()
        assert self.wire.sent[api_key] == 1

    async def is_sent_again(self, api_key: int, call: Callable[[], Awaitable[Any]]) -> Any:
        self.wire.lose(api_key)
        answer = await call()
        assert self.wire.sent[api_key] == 2
        return answer

    async def join(self, member_id: str = "") -> groups.Joined:
        return await groups.join(
            self.coordinators,
            Membership(group_id="g", member_id=member_id),
            PROTOCOL_TYPE,
            [Protocol(RANGE, encode_subscription(["t"]))],
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
        )


@asynccontextmanager
async def world_of(port: int, wire: LossyWire) -> AsyncIterator[World]:
    cluster = Cluster(f"{HOST}:{port}", client_id="test", request_timeout_s=TIMEOUT_S, retry_backoff_s=0.01)
    try:
        yield World(cluster, wire)
    finally:
        cluster.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    wire = LossyWire()
    server = await asyncio.start_server(wire.serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}", "group.initial.rebalance.delay.ms": "0"}
    async with server:
        with LocalBroker(settings=settings) as broker:
            wire.target = broker.port
            async with world_of(port, wire) as world:
                await topic_calls.create(world.cluster, "t", partitions=1, configs={})
                yield world


async def test_creation_with_a_lost_response_is_not_repeated(world: World) -> None:
    async def create() -> None:
        await topic_calls.create(world.cluster, "u", partitions=1, configs={})

    await world.is_sent_once(CREATE, create)
    assert (await world.cluster.topic("u")).name == "u"
    with pytest.raises(KafkaApiError, match="exists"):
        await create()


async def test_changes_with_a_lost_response_are_not_repeated(world: World) -> None:
    await world.is_sent_once(GROW, lambda: topic_calls.grow(world.cluster, "t", 2))
    await world.is_sent_once(DELETE, lambda: topic_calls.delete(world.cluster, "t"))


async def test_leaving_with_a_lost_response_is_not_repeated(world: World) -> None:
    member = (await world.join()).member_id
    who = Membership(group_id="g", member_id=member)
    await world.is_sent_once(LEAVE, lambda: groups.leave(world.coordinators, who))
    offset = Offset("t", 0, 1)
    await groups.commit(world.coordinators, Membership(group_id="g"), [offset])
    await world.is_sent_once(DELETE_GROUPS, lambda: admin.delete_group(world.coordinators, "g"))


async def test_batch_with_a_lost_response_is_not_repeated(world: World) -> None:
    batch = build_batch([NewRecord(key=b"k", value=b"v", timestamp=1)])
    await world.is_sent_once(PRODUCE, lambda: send_batch(world.cluster, "t", 0, batch))
    assert (await offsets_at(world.cluster, "t", [0], LATEST)) == {0: 1}


async def test_join_with_a_lost_response_leaves_no_ghost(world: World) -> None:
    await world.is_sent_once(JOIN, world.join)
    member = (await world.join()).member_id
    again = await world.is_sent_again(JOIN, lambda: world.join(member))
    assert again.member_id == member
    described = await admin.describe_group(world.coordinators, "g")
    assert [one.member_id for one in described.members] == [member]


async def test_questions_and_repeatable_requests_are_sent_again(world: World) -> None:
    cluster, coordinators = world.cluster, world.coordinators
    joined = await world.join()
    who = Membership(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
    await world.is_sent_again(SYNC, lambda: groups.sync(coordinators, who, {joined.member_id: b""}, wait_s=TIMEOUT_S))
    await world.is_sent_again(HEARTBEAT, lambda: groups.heartbeat(coordinators, who))
    await world.is_sent_again(COMMIT, lambda: groups.commit(coordinators, who, [Offset("t", 0, 7)]))
    found = await world.is_sent_again(FETCH_OFFSETS, lambda: groups.committed(coordinators, "g"))
    assert found == [Offset("t", 0, 7)]
    await world.is_sent_again(METADATA, lambda: cluster.patiently(lambda: cluster.refreshed("t")))
    await world.is_sent_again(LIST_OFFSETS, lambda: cluster.patiently(lambda: offsets_at(cluster, "t", [0], LATEST)))
    await world.is_sent_again(FETCH, lambda: cluster.patiently(lambda: fetch(cluster, "t", 0, 0, bytes_max=1_000)))


async def test_lost_answer_to_a_question_before_a_change_is_asked_again(world: World) -> None:
    world.wire.lose(METADATA)
    await topic_calls.create(world.cluster, "v", partitions=1, configs={})
    assert (await world.cluster.topic("v")).name == "v"
