"""The gateway in front of three brokers: who leads and who coordinates is killed and comes back, nothing is lost.

Everybody works throughout: writers by REST, a reader of one partition, a consumer of a group over HTTP, a stream of
events and a stream of gRPC. The gateway lives, so neither stream may end.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from confluent_kafka.admin import AdminClient

from headrace.rpc import headrace_pb2_grpc as stubs
from headrace.testing import LocalCluster
from tests.gateways import Doors, doors_alone
from tests.integration.rpc.kit import subscribe, values_of
from tests.patience import until

WAIT_S = 120.0
TOPIC, PARTITIONS, WRITERS = "t", 3, 4
STREAMED, POLLED, RPC = GROUPS = ("streamed", "polled", "rpc")
MORE = 30  # acknowledged in each step, so that every step is one under load
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "6"}


class World:
    def __init__(self, rest: httpx.AsyncClient, doors: Doors) -> None:
        self._rest, self._doors = rest, doors
        self.stop = asyncio.Event()
        self.acked: set[str] = set()
        self.seen: dict[str, set[str]] = {name: set() for name in GROUPS}  # by whom
        self.followed: list[tuple[int, str]] = []
        self.unexplained: list[str] = []
        self.readers: list[asyncio.Task[None]] = []

    def _is_explained(self, answer: httpx.Response) -> bool:
        """A yes; or a problem document that says that it will pass."""
        if answer.is_success:
            return True
        problem = answer.json() if "problem+json" in answer.headers["content-type"] else {}
        if not problem.get("retriable"):
            self.unexplained.append(f"{answer.request.url}: {answer.status_code} {answer.text}")
        return False

    async def write(self, writer: int) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            value = f"{writer}-{number}"
            answer = await self._rest.post(f"/topics/{TOPIC}/messages", json={"key": value, "value": value})
            if self._is_explained(answer):
                self.acked.add(value)

    async def follow(self) -> None:
        """One partition, by offset."""
        path = f"/topics/{TOPIC}/partitions/0/messages"
        while True:
            beginning = self.followed[-1][0] + 1 if self.followed else 0
            answer = await self._rest.get(path, params={"offset": beginning, "wait_ms": 1000})
            if self._is_explained(answer):
                self.followed += [(one["offset"], one["value"]) for one in answer.json()["messages"]]

    async def poll(self) -> None:
        """As a consumer of a group that can only ask."""
        base = f"/api/v1/groups/{POLLED}/consumers"
        joined = await self._rest.post(base, json={"topics": [TOPIC], "id": "one"})
        assert joined.status_code == 201, joined.text
        while True:
            answer = await self._rest.get(f"{base}/one/messages", params={"wait_ms": 1000})
            if self._is_explained(answer):
                self.seen[POLLED] |= {one["value"] for one in answer.json()["messages"]}
                self._is_explained(await self._rest.post(f"{base}/one/offsets", json={}))

    async def listen(self) -> None:
        path = f"/api/v1/groups/{STREAMED}/stream?topic={TOPIC}"
        async with self._rest.stream("GET", path) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self.seen[STREAMED].add(json.loads(line.removeprefix("data: "))["value"])
        raise AssertionError("the stream of events has ended")

    async def consume(self) -> None:
        async with grpc.aio.insecure_channel(self._doors.grpc) as channel:
            stub: Any = stubs.KafkaBrokerStub(channel)  # type: ignore[no-untyped-call]
            wanted = subscribe(group_id=RPC, topics=[TOPIC], auto_commit=True)
            async for event in stub.StreamConsume(iter([wanted])):
                self.seen[RPC] |= {value.decode() for value in values_of(event)}
        raise AssertionError("the stream of gRPC has ended")

    def everybody_is_ahead_of(self, before: set[str]) -> bool:
        """All that was acknowledged then has reached everybody, and there is more."""
        return len(self.acked) >= len(before) + MORE and all(before <= seen for seen in self.seen.values())

    async def stored(self) -> list[str]:
        lines = (await self._rest.get(f"/api/v1/topics/{TOPIC}/messages")).text.splitlines()
        return [json.loads(line)["value"] for line in lines]


@asynccontextmanager
async def at_work(world: World) -> AsyncIterator[None]:
    """Writers stop first; who reads is given the time to see the rest."""
    writers = [asyncio.create_task(world.write(number)) for number in range(WRITERS)]
    world.readers = [
        asyncio.create_task(read) for read in (world.follow(), world.poll(), world.listen(), world.consume())
    ]
    try:
        yield
        world.stop.set()
        await asyncio.gather(*writers)
        await patiently(world, lambda: all(world.acked <= seen for seen in world.seen.values()), "all is read")
    finally:
        for task in (*writers, *world.readers):
            task.cancel()
        await asyncio.gather(*writers, *world.readers, return_exceptions=True)


async def patiently(world: World, condition: Callable[[], bool], what: str) -> None:
    """Until it holds; a reader that has ended meanwhile says why."""
    await asyncio.to_thread(until, lambda: condition() or any(one.done() for one in world.readers), what, WAIT_S)
    for reader in world.readers:
        if reader.done():
            reader.result()


def coordinator(cluster: LocalCluster, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    number: int = admin.describe_consumer_groups([group])[group].result(WAIT_S).coordinator.id
    return number


def victims(cluster: LocalCluster) -> list[tuple[str, Callable[[], int]]]:
    named: list[tuple[str, Callable[[], int]]] = [("the leader", lambda: cluster.leader(TOPIC))]
    return named + [(f"the coordinator of {one}", lambda one=one: coordinator(cluster, one)) for one in GROUPS]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_was_answered_survives_who_leads_and_who_coordinates(tmp_path: Path) -> None:
    with (
        LocalCluster(3, memory=False, settings=SETTINGS) as cluster,
        doors_alone(cluster.bootstrap, tmp_path) as doors,
    ):
        async with httpx.AsyncClient(base_url=doors.rest, timeout=WAIT_S) as rest:
            wanted = {"name": TOPIC, "partitions": PARTITIONS, "replication_factor": 3}
            made = await rest.post("/api/v1/topics", json={**wanted, "configs": {"min.insync.replicas": "2"}})
            assert made.status_code == 201, made.text
            world = World(rest, doors)
            async with at_work(world):
                await step(world, "everybody has begun")
                for name, who in victims(cluster):
                    victim = await asyncio.to_thread(who)
                    await asyncio.to_thread(cluster.kill, victim)
                    await step(world, f"everybody goes on without {name}")
                    await asyncio.to_thread(cluster.restart, victim)
                    await step(world, f"everybody goes on with {name} back")
            stored = await world.stored()
    assert world.unexplained == []
    assert world.acked - set(stored) == set(), "answered, then lost"
    assert len(stored) == len(set(stored)), "idempotent: nothing is written twice"
    assert [offset for offset, _ in world.followed] == list(range(len(world.followed)))


async def step(world: World, what: str) -> None:
    before = set(world.acked)
    await patiently(world, lambda: world.everybody_is_ahead_of(before), what)
