"""The broker is killed and restarted under REST and streams: nothing that was answered is lost, streams go on."""

import asyncio
import itertools
import json

import httpx
import pytest

from headrace.testing import LocalBroker
from tests.gateways import gateway_alone

WAIT_S = 60.0
PARTITIONS = 2
ACKS_BETWEEN_KILLS = 50


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_was_answered_survives_and_streams_go_on(tmp_path):
    configs = {"group.initial.rebalance.delay.ms": "0"}
    with (
        LocalBroker(data_dir=tmp_path / "data", settings=configs) as broker,
        gateway_alone(broker.bootstrap, tmp_path) as url,
    ):
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as rest:
            await ready(rest)
            await rest.post("/topics", json={"name": "t", "partitions": PARTITIONS})
            world = World(rest)
            writers = [asyncio.create_task(world.write(number)) for number in range(8)]
            listener = asyncio.create_task(world.listen())
            for _ in range(2):
                await world.acked_more(ACKS_BETWEEN_KILLS)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.restart)
            await world.acked_more(ACKS_BETWEEN_KILLS)
            world.stop.set()
            await asyncio.gather(*writers)
            await world.heard_everything()
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
            stored = await world.stored()
    assert world.unexplained == [], "every refusal is a problem document that says whether to try again"
    assert world.acked, "the load has really run"
    assert world.acked - stored.keys() == set(), "answered, then lost"
    assert [value for value, count in stored.items() if count > 1] == [], "idempotent: nothing is written twice"
    assert world.acked - world.heard == set()


class World:
    def __init__(self, rest: httpx.AsyncClient) -> None:
        self._rest = rest
        self.stop = asyncio.Event()
        self.acked: set[str] = set()
        self.heard: set[str] = set()
        self.unexplained: list[str] = []

    async def write(self, writer: int) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            value = f"{writer}-{number}"
            answer = await self._rest.post("/topics/t/messages", json={"key": value, "value": value})
            if answer.status_code == 200:
                self.acked.add(value)
            elif answer.status_code != 503 or not answer.json().get("retriable"):
                self.unexplained.append(f"{answer.status_code} {answer.text}")

    async def listen(self) -> None:
        """As a browser's EventSource does: connect again, with the last id."""
        last_id = ""
        while True:
            headers = {"last-event-id": last_id} if last_id else {}
            try:
                path = "/api/v1/groups/g/stream?topic=t"
                async with self._rest.stream("GET", path, headers=headers) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("id: "):
                            last_id = line.removeprefix("id: ")
                        elif line.startswith("data: {"):
                            self.heard.add(json.loads(line.removeprefix("data: "))["value"])
            except httpx.HTTPError:
                await asyncio.sleep(0.2)

    async def acked_more(self, count: int) -> None:
        wanted = len(self.acked) + count
        while len(self.acked) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def heard_everything(self) -> None:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while self.acked - self.heard and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def stored(self) -> dict[str, int]:
        lines = (await self._rest.get("/api/v1/topics/t/messages")).text.splitlines()
        counts: dict[str, int] = {}
        for line in lines:
            value = json.loads(line)["value"]
            counts[value] = counts.get(value, 0) + 1
        return counts


async def ready(rest: httpx.AsyncClient) -> None:
    while True:
        try:
            if (await rest.get("/ready")).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.1)
