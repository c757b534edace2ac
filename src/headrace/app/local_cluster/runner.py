"""A cluster on one host: one process per broker and one for the metadata, supervised until they are stopped.

    <dir>/metadata.sqlite      metadata; with etcd, each of the first three brokers has a member instead
    <dir>/broker-<id>/         data directory of each broker, with its log file next to it

Assigns addresses and data directories, and the order of start and stop. Requests of other processes arrive through
`control.py`; `process/supervised_process.py` restarts processes.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import IO

from headrace.app.local_cluster.control import (
    AlreadyRunning,
    ClusterState,
    RunningNode,
    answer_wishes,
    forget_wishes,
    read_state,
    remove_state,
    write_state,
)
from headrace.app.local_cluster.processes import BrokerProcess, MetadataProcess
from headrace.config.loader import load_settings
from headrace.model.errors import HeadraceError
from headrace.process.supervised_process import FAILURES, SupervisedProcess

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
METADATA_FILE = "metadata.sqlite"
ETCD_MEMBERS_MAX = 3  # tolerates the loss of one; more would be slower, and all of them are on one host
# Member i listens for peers on the brokers' base port plus this plus i; its client port is any free one.
ETCD_PORTS_ABOVE = 100
# Of two brokers that stop at once, the second may try to reach an etcd without a majority for about 14 s in vain.
ETCD_STOP_SECONDS_MAX = 40.0
STARTS_MAX = 32  # concurrent starts: the maximum number of brokers


class LocalClusterRunner:
    def __init__(
        self, directory: str, nodes: int, listen_base: int, settings: Mapping[str, str], *, etcd: bool = False
    ) -> None:
        self._directory = os.path.abspath(directory)
        self._ids = _ids_in(self._directory, nodes)
        self._listen_base = listen_base
        self._settings = {
            "default.replication.factor": str(min(nodes, 3)),
            "min.insync.replicas": "2" if nodes > 2 else "1",
            **settings,
        }
        self._etcd_ids = self._members(etcd)
        self._is_founded = any(self._has_etcd(one) for one in self._etcd_ids)
        self._pool = ThreadPoolExecutor(STARTS_MAX)
        self._metadata: SupervisedProcess[MetadataProcess] | None = None
        self._brokers: dict[int, SupervisedProcess[BrokerProcess]] = {}
        self._logs: dict[int, IO[bytes]] = {}

    # Metadata

    def _members(self, wanted: bool) -> list[int]:
        """Returns the brokers with an etcd member: those that had one before, otherwise the first ones."""
        known = [one for one in self._ids if self._has_etcd(one)]
        if wanted and not known and os.path.exists(os.path.join(self._directory, METADATA_FILE)):
            raise HeadraceError(
                f"the cluster in {self._directory} has its metadata in {METADATA_FILE}, and etcd would have none of "
                "them: leave --etcd out, or choose another --dir"
            )
        return known or (self._ids[:ETCD_MEMBERS_MAX] if wanted else [])

    def _has_etcd(self, node_id: int) -> bool:
        return os.path.isdir(os.path.join(self._data_of(node_id), "etcd"))

    def _facts(self, node_id: int) -> dict[str, str]:
        """Returns the settings with which a broker finds the metadata."""
        if not self._etcd_ids:
            return {"metadata": f"unix://{self._socket_path}"}
        rpc_addr = {one: f"{HOST}:{self._listen_base + ETCD_PORTS_ABOVE + one}" for one in self._etcd_ids}
        listed = ",".join(f"{one}@{self._address(one)}@{rpc_addr[one]}" for one in self._etcd_ids)
        founds = node_id == self._etcd_ids[0] and not self._is_founded
        told = {"cluster.initial_members": listed, "cluster.bootstrap": str(founds).lower()}
        return told | ({"etcd.client_addr": f"{HOST}:0"} if node_id in rpc_addr else {})

    # Start

    def start(self) -> ClusterState:
        """Returns when every broker serves."""
        running = read_state(self._directory)
        if running is not None:
            raise AlreadyRunning(
                f"process {running.supervisor} runs the cluster in {self._directory}; `headrace cluster down` stops it"
            )
        os.makedirs(self._directory, exist_ok=True)
        forget_wishes(self._directory)
        if not self._etcd_ids:
            file = os.path.join(self._directory, METADATA_FILE)
            self._metadata = SupervisedProcess(
                "the metadata process", lambda: MetadataProcess(self._socket_path, file), self._pool, time.monotonic()
            )
        list(self._pool.map(self._keep_broker, self._ids))
        self._brokers = dict(sorted(self._brokers.items()))
        self._is_founded = True
        return self._tell_state()

    @property
    def _socket_path(self) -> str:
        return os.path.join(self._directory, "metadata.socket")

    def _address(self, node_id: int) -> str:
        return f"{HOST}:{self._listen_base + node_id}"

    def _data_of(self, node_id: int) -> str:
        return os.path.join(self._directory, f"broker-{node_id}")

    def _keep_broker(self, node_id: int) -> None:
        kept = SupervisedProcess(f"broker {node_id}", lambda: self._start_broker(node_id), self._pool, time.monotonic())
        self._brokers[node_id] = kept

    def _start_broker(self, node_id: int) -> BrokerProcess:
        own = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{self._address(node_id)}",
            "log.dirs": self._data_of(node_id),
            "gateway.enabled": "false",
            **self._facts(node_id),
        }
        texts = [(name, text, "") for name, text in {**self._settings, **own}.items()]
        if node_id not in self._logs:
            # Readable, too: the error of a failed start is read from it.
            self._logs[node_id] = open(f"{self._data_of(node_id)}.log", "a+b")  # noqa: SIM115 - closed by `stop`
        patience = {"stop_seconds_max": ETCD_STOP_SECONDS_MAX} if self._etcd_ids else {}
        return BrokerProcess(load_settings(None, {}, texts).settings, self._logs[node_id].fileno(), **patience)

    def _tell_state(self) -> ClusterState:
        nodes = tuple(RunningNode(one, self._address(one), broker.pid) for one, broker in self._brokers.items())
        state = ClusterState(os.getpid(), nodes, tuple(self._etcd_ids))
        write_state(self._directory, state)
        return state

    # While it runs

    def mend(self) -> list[str]:
        """Restarts ended processes whose pause is over; returns a description of each event."""
        now_s = time.monotonic()
        kept: list[SupervisedProcess[MetadataProcess] | SupervisedProcess[BrokerProcess]] = [*self._brokers.values()]
        if self._metadata is not None:
            kept.insert(0, self._metadata)
        said = [what for one in kept if (what := one.look(now_s)) is not None]
        if said:
            self._tell_state()  # publishes the new process ids
        return said

    def obey(self) -> list[RunningNode]:
        """Executes pending requests of other processes; returns the added brokers."""
        before = set(self._brokers)
        answer_wishes(self._directory, self._obey)
        return [
            RunningNode(one, self._address(one), self._brokers[one].pid) for one in self._brokers if one not in before
        ]

    def _obey(self, wish: dict[str, object]) -> int:
        try:
            return self._add() if wish["what"] == "add" else self._remove(int(str(wish["node"])))
        finally:
            self._tell_state()  # also after a failure: cluster.json lists the processes that run

    def _add(self) -> int:
        node_id = max(self._brokers) + 1
        try:
            self._keep_broker(node_id)
        except BaseException:
            self._set_data_aside(node_id)  # otherwise the next `up` would start a broker that was never added
            raise
        return node_id

    def _remove(self, node_id: int) -> int:
        """Stops a broker; keeps its data under a name that the next start ignores."""
        if node_id not in self._brokers:
            raise HeadraceError(f"no broker {node_id} runs in {self._directory}")
        try:
            self._brokers.pop(node_id).stop()
        except RuntimeError as error:
            # The process has ended and has no replicas. A failure here would leave it registered forever.
            log.warning("Broker %d did not shut down cleanly: %s; removing it nevertheless", node_id, error)
        self._set_data_aside(node_id)
        return node_id

    def _set_data_aside(self, node_id: int) -> None:
        """Renames the data directory to the first free `broker-<id>.removed-<number>`."""
        data = self._data_of(node_id)
        free = next(path for number in count(1) if not os.path.exists(path := f"{data}.removed-{number}"))
        with suppress(FileNotFoundError):  # a broker that failed early has none
            os.rename(data, free)

    # Stop

    def stop(self, report: Callable[[str], None] = lambda what: None) -> bool:
        """Stops the brokers one after another, so that each can hand its leaderships over to the remaining ones.

        Reports the outcome of each; returns False if one did not shut down cleanly. The others are still stopped:
        otherwise they would be killed with this process.
        """
        outcomes = []
        for together in stopping_order(list(self._brokers), self._etcd_ids):
            stopped = list(self._pool.map(lambda one: _stopped(f"broker {one}", self._brokers[one]), together))
            for what, _ in stopped:
                report(what)
            outcomes += stopped
        if self._metadata is not None:
            what, is_clean = _stopped("the metadata process", self._metadata)
            outcomes.append((what, is_clean))
            if not is_clean:
                report(what)
        self._brokers, self._metadata = {}, None
        self._pool.shutdown()
        for log in self._logs.values():
            log.close()
        remove_state(self._directory)
        return all(is_clean for _, is_clean in outcomes)


def _stopped(
    name: str, process: "SupervisedProcess[MetadataProcess] | SupervisedProcess[BrokerProcess]"
) -> tuple[str, bool]:
    """Stops a process; returns a description of the outcome and whether it ended cleanly."""
    try:
        process.stop()
    except FAILURES as error:
        return f"{name} did not stop cleanly: {error}", False
    return f"{name} has stopped", True


def stopping_order(brokers: Sequence[int], etcd_ids: Sequence[int]) -> list[list[int]]:
    """Returns groups of brokers to stop at once, in order.

    A broker stops its etcd member with it. The last members with a majority need each other for every write: one of
    them that stopped later would wait in vain to deregister.
    """
    majority = len(etcd_ids) // 2 + 1 if etcd_ids else 0
    last = [one for one in brokers if one in etcd_ids][-majority:] if majority else []
    groups = [[one] for one in brokers if one not in last]
    return [*groups, last] if last else groups


def _ids_in(directory: str, nodes: int) -> list[int]:
    """Returns the brokers with data directories, and new ones up to the wanted number."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    known = sorted(int(name[len("broker-") :]) for name in names if re.fullmatch(r"broker-\d+", name))
    first_new = known[-1] + 1 if known else 1
    return known + list(range(first_new, first_new + nodes - len(known)))
