"""Control files of a local cluster: its state, and requests of other processes.

<dir>/cluster.json         while it runs: addresses and processes of the brokers
<dir>/wish-<pid>.json      request of another process: add or remove a broker; deleted when it is complete
"""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from headrace.model.errors import HeadraceError

STATE_FILE = "cluster.json"
WISH_PREFIX = "wish-"


class AlreadyRunning(HeadraceError):
    """Another process runs the cluster of this directory."""


class NotRunning(HeadraceError):
    """No cluster runs in this directory, or it cannot execute the request."""


class RunningNode(NamedTuple):
    node_id: int
    address: str
    pid: int


class ClusterState(NamedTuple):
    supervisor: int
    nodes: tuple[RunningNode, ...]
    etcd: tuple[int, ...] = ()  # brokers with an etcd member

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)


# By the cluster itself


def write_state(directory: str, state: ClusterState) -> None:
    path = os.path.join(directory, STATE_FILE)
    _write_whole(path, {**state._asdict(), "nodes": [node._asdict() for node in state.nodes]})


def remove_state(directory: str) -> None:
    state = read_state(directory)
    if state is not None and state.supervisor == os.getpid():
        os.remove(os.path.join(directory, STATE_FILE))


def forget_wishes(directory: str) -> None:
    """Removes requests that were left to an earlier process."""
    for name in os.listdir(directory):
        if name.startswith(WISH_PREFIX):
            os.remove(os.path.join(directory, name))


def answer_wishes(directory: str, obey: Callable[[dict[str, object]], int]) -> None:
    """Executes pending requests with `obey` and writes the resulting broker id, or the error, for the requester."""
    for name in os.listdir(directory):
        if name.startswith(WISH_PREFIX) and name.endswith(".json"):
            path = os.path.join(directory, name)
            with open(path) as file:
                wish = json.load(file)
            try:
                answer: dict[str, object] = {"node": obey(wish)}
            except (HeadraceError, RuntimeError, OSError) as error:
                answer = {"error": str(error)}
            _write_whole(path.removesuffix(".json") + ".done", answer)
            os.remove(path)


def _write_whole(path: str, fields: dict[str, object]) -> None:
    with open(path + ".tmp", "w") as file:
        json.dump(fields, file)
    os.replace(path + ".tmp", path)


# By other processes


def read_state(directory: str) -> ClusterState | None:
    """Returns the state of the cluster in the directory; None if none runs."""
    try:
        with open(os.path.join(directory, STATE_FILE)) as file:
            fields = json.load(file)
    except FileNotFoundError:
        return None
    nodes = tuple(RunningNode(**node) for node in fields["nodes"])
    state = ClusterState(fields["supervisor"], nodes, tuple(fields.get("etcd", ())))
    try:
        os.kill(state.supervisor, 0)
    except ProcessLookupError:
        return None  # left by a killed process; its brokers ended with it
    return state


def check_removable(directory: str, node_id: int) -> None:
    """Raises NotRunning for a broker with an etcd member; called before any replica is moved off the broker."""
    state = read_state(directory)
    if state is not None and node_id in state.etcd:
        raise NotRunning(
            f"broker {node_id} cannot be removed, because an etcd member runs with it; the cluster of {directory} "
            f"keeps broker {' and '.join(str(one) for one in state.etcd)}"
        )


def ask_to_stop(state: ClusterState) -> None:
    os.kill(state.supervisor, signal.SIGTERM)


def ask_to_add(directory: str, seconds_max: float) -> RunningNode:
    """Adds a broker to the cluster that runs in the directory; returns when it serves."""
    added = _ask(directory, {"what": "add"}, seconds_max)
    state = read_state(directory)
    assert state is not None, "it has answered"
    return next(node for node in state.nodes if node.node_id == added)


def ask_to_remove(directory: str, node_id: int, seconds_max: float) -> None:
    """Stops a broker and removes it from the cluster."""
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
            raise NotRunning(f"the cluster in {directory} does not respond; see the logs there")
        time.sleep(0.05)
    with open(path + ".done") as file:
        answer = json.load(file)
    os.remove(path + ".done")
    if "error" in answer:
        raise NotRunning(answer["error"])
    return int(answer["node"])
