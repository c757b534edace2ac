"""A cluster on one machine: a process for the facts, and one for each broker, started and stopped in order.

<dir>/metadata.sqlite      the facts
<dir>/broker-<id>/         the data of each broker, and its log beside it
<dir>/cluster.json         while it runs: where the brokers are, and their processes
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

from headrace.app.config_file import load_settings
from headrace.app.metadata_process import MetadataProcess
from headrace.app.node_process import BrokerProcess
from headrace.model.errors import HeadraceError

STATE_FILE = "cluster.json"
HOST = "127.0.0.1"


class AlreadyRunning(HeadraceError):
    """Another process runs the cluster of this directory."""


class RunningNode(NamedTuple):
    node_id: int
    address: str
    pid: int


class ClusterState(NamedTuple):
    supervisor: int
    nodes: tuple[RunningNode, ...]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)


class MachineCluster:
    def __init__(self, directory: str, nodes: int, listen_base: int, settings: Mapping[str, str]) -> None:
        self._directory = os.path.abspath(directory)
        self._ids = range(1, nodes + 1)
        self._listen_base = listen_base
        self._settings = {
            "default.replication.factor": str(min(nodes, 3)),
            "min.insync.replicas": "2" if nodes > 2 else "1",
            **settings,
        }
        self._metadata: MetadataProcess | None = None
        self._logs: list[IO[bytes]] = []
        self._brokers: dict[int, BrokerProcess] = {}

    def start(self) -> ClusterState:
        """Returns when every broker serves."""
        running = read_state(self._directory)
        if running is not None:
            raise AlreadyRunning(
                f"process {running.supervisor} runs the cluster in {self._directory}; `headrace cluster down` stops it"
            )
        os.makedirs(self._directory, exist_ok=True)
        socket_path = os.path.join(self._directory, "metadata.socket")
        self._metadata = MetadataProcess(socket_path, os.path.join(self._directory, "metadata.sqlite"))
        with ThreadPoolExecutor(len(self._ids)) as pool:
            started = pool.map(lambda node_id: (node_id, self._start_broker(node_id, socket_path)), self._ids)
            self._brokers = dict(started)
        nodes = tuple(RunningNode(one, self._address(one), broker.pid) for one, broker in self._brokers.items())
        state = ClusterState(os.getpid(), nodes)
        self._write_state(state)
        return state

    def _address(self, node_id: int) -> str:
        return f"{HOST}:{self._listen_base + node_id}"

    def _start_broker(self, node_id: int, socket_path: str) -> BrokerProcess:
        own = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{self._address(node_id)}",
            "log.dirs": os.path.join(self._directory, f"broker-{node_id}"),
            "metadata": f"unix://{socket_path}",
            "gateway.enabled": "false",
        }
        texts = [(name, text, "") for name, text in {**self._settings, **own}.items()]
        log = open(os.path.join(self._directory, f"broker-{node_id}.log"), "ab")  # noqa: SIM115 - closed by `stop`
        self._logs.append(log)
        return BrokerProcess(load_settings(None, {}, texts).settings, log.fileno())

    def _write_state(self, state: ClusterState) -> None:
        path = os.path.join(self._directory, STATE_FILE)
        with open(path + ".tmp", "w") as file:
            json.dump({"supervisor": state.supervisor, "nodes": [node._asdict() for node in state.nodes]}, file)
        os.replace(path + ".tmp", path)

    def ended(self) -> dict[int, str]:
        """Brokers that ended although nobody stopped them, and how."""
        reasons = {one: broker.ended_by_itself() for one, broker in self._brokers.items()}
        return {one: reason for one, reason in reasons.items() if reason is not None}

    def stop(self, told: Callable[[int], None] = lambda node_id: None) -> None:
        """One broker after the other, so that each can hand over to those that are left."""
        for node_id, broker in self._brokers.items():
            if broker.ended_by_itself() is None:
                broker.stop()
            told(node_id)
        if self._metadata is not None:
            self._metadata.stop()
        for log in self._logs:
            log.close()
        state = read_state(self._directory)
        if state is not None and state.supervisor == os.getpid():
            os.remove(os.path.join(self._directory, STATE_FILE))


def read_state(directory: str) -> ClusterState | None:
    """What runs in the directory; None if nothing does."""
    try:
        with open(os.path.join(directory, STATE_FILE)) as file:
            fields = json.load(file)
    except FileNotFoundError:
        return None
    state = ClusterState(fields["supervisor"], tuple(RunningNode(**node) for node in fields["nodes"]))
    try:
        os.kill(state.supervisor, 0)
    except ProcessLookupError:
        return None  # left behind by one that was killed; its brokers ended with it
    return state


def ask_to_stop(state: ClusterState) -> None:
    os.kill(state.supervisor, signal.SIGTERM)
