"""Config files for the nodes of a cluster, on ports that stay free for them, and nodes as processes."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from confluent_kafka.admin import AdminClient

from headrace.config.loader import load_settings
from headrace.config.settings import Settings
from headrace.process.sockets import reserve_port
from headrace.testing.local.broker import HOST
from tests.patience import awaited

START_SECONDS_MAX = 60.0


class NodeFiles:
    """`node(i)` is what the YAML of the i-th node says. Its ports stay free until the `with` block ends."""

    def __init__(self, folder: Path, count: int, listed: int | None = None) -> None:
        self.folder = folder
        self._ports: list[tuple[socket.socket, ...]] = [
            (reserve_port(0), reserve_port(0), reserve_port(0)) for _ in range(count)
        ]
        self.members = [self._member(index) for index in range(count)]
        self._listed = self.members[: listed if listed is not None else count]

    def _port(self, index: int, which: int) -> int:
        port: int = self._ports[index][which].getsockname()[1]
        return port

    def _member(self, index: int) -> dict[str, Any]:
        api_addr, rpc_addr = (f"{HOST}:{self._port(index, which)}" for which in (0, 1))
        return {"node_id": index + 1, "api_addr": api_addr, "rpc_addr": rpc_addr}

    def node(self, index: int, **changes: Any) -> dict[str, Any]:
        content: dict[str, Any] = {
            **self.members[index],
            "storage_path": str(self.folder / f"broker-{index + 1}"),
            "cluster": {"initial_members": self._listed, "bootstrap": index == 0},
            "raft": {
                "heartbeat_interval_ms": 50,
                "election_timeout_min_ms": 500,
                "election_timeout_max_ms": 1000,
            },
            "gateway": {"enabled": False},
            "etcd": {"client_addr": f"{HOST}:{self._port(index, 2)}"},
        }
        return {**content, **changes}

    def write(self, index: int, **changes: Any) -> Path:
        path = self.folder / f"node{index + 1}.yaml"
        path.write_text(yaml.safe_dump(self.node(index, **changes)))
        return path

    def settings(self, index: int, **changes: Any) -> Settings:
        return load_settings(str(self.write(index, **changes)), {}).settings

    def __enter__(self) -> "NodeFiles":
        return self

    def __exit__(self, *_: object) -> None:
        for ports in self._ports:
            for port in ports:
                port.close()


# The command, in a process that is told another time. A namespace of clocks has no wall clock, and changing the
# machine's is for nobody's tests.
_AHEAD = """
import runpy, time
right = time.time_ns
time.time_ns = lambda: right() + {}
runpy.run_module("headrace.cli.main", run_name="__main__", alter_sys=True)
"""


class NodeProcess:
    """`headrace start --config FILE`, perhaps on a machine whose clock is wrong."""

    def __init__(self, config: Path, clock_ahead_s: int = 0) -> None:
        self._log = config.with_suffix(".log")
        with self._log.open("ab") as log:
            command = [sys.executable, "-P", "-m", "headrace.cli.main", "start", "--config", str(config)]
            if clock_ahead_s:
                command[2:4] = ["-c", _AHEAD.format(clock_ahead_s * 10**9)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
        self.pid = self._process.pid

    def wait_until(self, text: str, count: int = 1) -> None:
        """Until its log has the text so often."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.output().count(text) < count:
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def wait_for_end(self) -> int:
        return self._process.wait(START_SECONDS_MAX)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def etcd(self) -> psutil.Process:
        return next(child for child in psutil.Process(self.pid).children() if child.name() == "etcd")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(30)

    def close(self) -> None:
        if self._process.poll() is None:
            self.stop(signal.SIGKILL)


@contextmanager
def running(*configs: Path) -> Iterator[list[NodeProcess]]:
    """Nodes that serve."""
    nodes = [NodeProcess(config) for config in configs]
    try:
        for node in nodes:
            node.wait_until(" serves ")
        yield nodes
    finally:
        for node in nodes:
            node.close()


def admin(files: NodeFiles, index: int) -> AdminClient:
    return AdminClient({"bootstrap.servers": files.members[index]["api_addr"]})


def wait_for_brokers(files: NodeFiles, index: int, expected: set[int]) -> str:
    """Until the node lists these brokers; returns the id of its cluster."""
    told = awaited(
        lambda: admin(files, index).list_topics(timeout=30),
        lambda told: set(told.brokers) == expected,
        f"node {index} lists the brokers {expected}",
        30,
    )
    return str(told.cluster_id)
