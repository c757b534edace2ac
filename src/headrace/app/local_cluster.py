"""A cluster on one machine: a process for the facts, and one for each broker, started and stopped in order.

<dir>/metadata.sqlite      the facts
<dir>/broker-<id>/         the data of each broker, and its log beside it
<dir>/cluster.json         while it runs: where the brokers are, and their processes
<dir>/wish-<pid>.json      what another process wants of it: one broker more, or one less; removed when it is done
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

from headrace.app.config_file import load_settings
from headrace.app.metadata_process import MetadataProcess
from headrace.app.node_process import BrokerProcess
from headrace.model.errors import HeadraceError

STATE_FILE = "cluster.json"
WISH_PREFIX = "wish-"
HOST = "127.0.0.1"


class AlreadyRunning(HeadraceError):
    """Another process runs the cluster of this directory."""


class NotRunning(HeadraceError):
    """No cluster runs in this directory, or it cannot do what is asked."""


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
        self._ids = _ids_in(self._directory, nodes)
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
        for left in _wishes(self._directory):
            os.remove(left)
        self._metadata = MetadataProcess(self._socket_path, os.path.join(self._directory, "metadata.sqlite"))
        with ThreadPoolExecutor(len(self._ids)) as pool:
            started = pool.map(lambda node_id: (node_id, self._start_broker(node_id, self._socket_path)), self._ids)
            self._brokers = dict(started)
        return self._write_state()

    @property
    def _socket_path(self) -> str:
        return os.path.join(self._directory, "metadata.socket")

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

    def _write_state(self) -> ClusterState:
        nodes = tuple(RunningNode(one, self._address(one), broker.pid) for one, broker in self._brokers.items())
        state = ClusterState(os.getpid(), nodes)
        path = os.path.join(self._directory, STATE_FILE)
        with open(path + ".tmp", "w") as file:
            json.dump({"supervisor": state.supervisor, "nodes": [node._asdict() for node in state.nodes]}, file)
        os.replace(path + ".tmp", path)
        return state

    # Wishes of other processes

    def obey(self) -> list[RunningNode]:
        """Do what others have asked for meanwhile; returns the brokers that are new."""
        before = set(self._brokers)
        for name in os.listdir(self._directory):
            if name.startswith(WISH_PREFIX) and name.endswith(".json"):
                self._obey(os.path.join(self._directory, name))
        return [
            RunningNode(one, self._address(one), self._brokers[one].pid) for one in self._brokers if one not in before
        ]

    def _obey(self, path: str) -> None:
        with open(path) as file:
            wish = json.load(file)
        try:
            answer: dict[str, object] = {"node": self._add() if wish["what"] == "add" else self._remove(wish["node"])}
        except (HeadraceError, RuntimeError, OSError) as error:
            answer = {"error": str(error)}
        self._write_state()
        with open(path + ".tmp", "w") as file:
            json.dump(answer, file)
        os.replace(path + ".tmp", path.removesuffix(".json") + ".done")
        os.remove(path)

    def _add(self) -> int:
        node_id = max(self._brokers) + 1
        self._brokers[node_id] = self._start_broker(node_id, self._socket_path)
        return node_id

    def _remove(self, node_id: int) -> int:
        """Its data stays, under a name that the next start passes over."""
        if node_id not in self._brokers:
            raise HeadraceError(f"no broker {node_id} runs in {self._directory}")
        self._brokers.pop(node_id).stop()
        data = os.path.join(self._directory, f"broker-{node_id}")
        os.rename(data, f"{data}.removed-{os.getpid()}")
        return node_id

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


def _ids_in(directory: str, nodes: int) -> list[int]:
    """The brokers whose data are there, and new ones up to the wanted number."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    known = sorted(int(name[len("broker-") :]) for name in names if re.fullmatch(r"broker-\d+", name))
    first_new = known[-1] + 1 if known else 1
    return known + list(range(first_new, first_new + nodes - len(known)))


def _wishes(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(WISH_PREFIX)]


def ask_to_add(directory: str, seconds_max: float) -> RunningNode:
    """One broker more in the cluster that runs in the directory; returns when it serves."""
    added = _ask(directory, {"what": "add"}, seconds_max)
    state = read_state(directory)
    assert state is not None, "it has answered"
    return next(node for node in state.nodes if node.node_id == added)


def ask_to_remove(directory: str, node_id: int, seconds_max: float) -> None:
    """Stop a broker that is no longer needed, for good."""
    _ask(directory, {"what": "remove", "node": node_id}, seconds_max)


def _ask(directory: str, wish: dict[str, object], seconds_max: float) -> int:
    if read_state(directory) is None:
        raise NotRunning(f"no cluster runs in {directory}; `headrace cluster up` starts one")
    path = os.path.join(directory, f"{WISH_PREFIX}{os.getpid()}")
    with open(path + ".new", "w") as file:
        json.dump(wish, file)
    os.replace(path + ".new", path + ".json")
    deadline = time.monotonic() + seconds_max
    while not os.path.exists(path + ".done"):
        if time.monotonic() > deadline or read_state(directory) is None:
            raise NotRunning(f"the cluster in {directory} does not answer; look at the logs there")
        time.sleep(0.05)
    with open(path + ".done") as file:
        answer = json.load(file)
    os.remove(path + ".done")
    if "error" in answer:
        raise NotRunning(answer["error"])
    return int(answer["node"])


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
