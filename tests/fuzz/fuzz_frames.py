"""Atheris on whole request frames, through a real broker's dispatcher in this process: nothing unforeseen comes out.

    python tests/fuzz/fuzz_frames.py TARGET [CORPUS_DIR] [-runs=N] [-seed=N] …

An input is what a client sends over one connection: frames, one after the other, each as long as its first two bytes
say. The connection may end, and answers may come; but a handler that fails in a way that nobody foresaw (which the
dispatcher logs as an exception) is a finding, and so is a broker that does not answer the next client. The other
arguments go to libFuzzer.
"""

import asyncio
import logging
import sys
from importlib import import_module
from pathlib import Path
from struct import pack, unpack_from

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from headrace.app.node import Node
from headrace.broker.api.registry import handler_module
from headrace.broker.server import Broker
from headrace.protocol.api import SERVED, ApiKey
from headrace.testing.local.broker import node_settings
from tests.unit.broker.connection_kit import Peer, StandInServer, frame, settle

# What decides about a request, and no more: instrumenting the whole broker would take longer than a bounded run.
with atheris.instrument_imports(include=["headrace"]):
    for api in SERVED:
        handler_module(api)
    import_module("headrace.broker.coordinator.add_partitions_manager")

SETTINGS = {
    "num.partitions": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
}
QUESTION = frame(pack(">hhih", 18, 0, 99, -1))  # ApiVersions, which is always answered
FRAMES_MAX = 8


class Unforeseen(logging.Handler):
    """Remembers what the broker could not explain."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


class Stage:
    """A broker in memory, on a loop that runs while an input is tried."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.unforeseen = Unforeseen()
        logging.getLogger().addHandler(self.unforeseen)
        logging.getLogger("headrace").setLevel(logging.ERROR)
        self.loop.set_exception_handler(lambda _, context: self.unforeseen.found.append(str(context)))
        self.broker = self.loop.run_until_complete(self._start())

    async def _start(self) -> Broker:
        node = Node(node_settings(SETTINGS, port=0, data_dir=None))
        await node.start()
        assert node.broker is not None
        for api in set(SERVED) - {ApiKey.PRODUCE, ApiKey.FETCH}:
            for version in range(SERVED[api].lowest, SERVED[api].highest + 1):
                node.broker.dispatcher._load(api, version)  # else the first answer comes after the client has left
        return node.broker

    async def attempt(self, data: bytes) -> None:
        server = StandInServer(self.broker.dispatcher)
        client = server.connect()
        for request in requests(data):
            if client.connection.closed:
                break
            await client.send(frame(request))
        client.close()
        await self._is_served(server.connect())

    async def _is_served(self, next_client: Peer) -> None:
        async with asyncio.timeout(10):
            await next_client.send(QUESTION)
            assert (await next_client.receive())[:4] == pack(">i", 99)
        next_client.close()
        await settle()


def requests(data: bytes) -> list[bytes]:
    found = []
    position = 0
    while position + 2 <= len(data) and len(found) < FRAMES_MAX:
        (size,) = unpack_from(">H", data, position)
        found.append(data[position + 2 : position + 2 + size])
        position += 2 + size
    return found


stage: Stage


def frames(data: bytes) -> None:
    stage.loop.run_until_complete(stage.attempt(data))
    assert not stage.unforeseen.found, "\n".join(stage.unforeseen.found)


TARGETS = {target.__name__: target for target in (frames,)}


def main() -> None:
    global stage
    stage = Stage()
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
