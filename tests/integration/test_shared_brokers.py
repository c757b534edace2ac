"""Three brokers of one machine on one embedded store, and what they do when its server goes away and comes back."""

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.node_kit import NodeFiles, running, wait_for_brokers
from tests.integration.test_local_metadata import Server


@pytest.fixture
def socket_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path may be too long for a socket's address
        yield folder


async def test_brokers_find_each_other_and_come_back_after_the_store_was_killed(
    tmp_path: Path, socket_folder: str
) -> None:
    server = Server(socket_folder)
    await server.start()
    shared: dict[str, Any] = {"metadata": f"unix://{server.socket}", "cluster": {}, "etcd": {}}
    try:
        with NodeFiles(tmp_path, 3) as files:
            configs = [files.write(index, **shared) for index in range(3)]
            await asyncio.to_thread(_go_through, server, files, configs, asyncio.get_running_loop())
    finally:
        await server.end(signal.SIGKILL)


def _go_through(server: Server, files: NodeFiles, configs: list[Path], loop: asyncio.AbstractEventLoop) -> None:
    with running(*configs) as nodes:
        everybody = {1, 2, 3}
        identity = {wait_for_brokers(files, index, everybody) for index in range(3)}
        assert len(identity) == 1

        asyncio.run_coroutine_threadsafe(server.end(signal.SIGKILL), loop).result(30)
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        for node in nodes:  # with the server went all leases
            node.wait_until("the session of this broker is over")
        assert {wait_for_brokers(files, index, everybody) for index in range(3)} == identity
        for node in nodes:
            assert node.stop() == 0
