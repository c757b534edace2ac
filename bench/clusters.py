"""Three nodes that are one cluster, of either kind. Says nothing about what is measured.

Either kind runs its consensus beside its brokers: Kafka's nodes are controllers too, headrace's have an etcd member.
A node is one process group, so that killing it takes its voter along.
"""

import json
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, NamedTuple

from bench.brokers import Broker, Policy, Served, free_port
from bench.headrace_node import PROGRAM, Headrace
from bench.kafka import Kafka, random_id
from bench.processes import Processes

NODES = 3
HOST = "127.0.0.1"
_MIN_INSYNC = {"min.insync.replicas": "2"}
_DEFAULTS = {"default.replication.factor": str(NODES), **_MIN_INSYNC}


class Seat(NamedTuple):
    """Where one node of a cluster listens."""

    node_id: int
    port: int
    voter_port: int  # its controller, or its etcd member, for the others of that kind
    voter_client_port: int  # its etcd member, for brokers


class Cluster(Served):
    replicas = NODES

    def __init__(self, processes: Processes, home: Path) -> None:
        self.home = home
        seats = [Seat(node_id, free_port(), free_port(), free_port()) for node_id in range(1, NODES + 1)]
        self.nodes = self.make_nodes(processes, seats)

    @abstractmethod
    def make_nodes(self, processes: Processes, seats: Sequence[Seat]) -> Mapping[int, Broker]:
        """Nodes by their ids, each with a home of its own in ours."""

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(node.pid for node in self.nodes.values())

    @property
    def is_running(self) -> bool:
        return all(node.is_running for node in self.nodes.values())

    def spawn(self) -> None:
        for node in self.nodes.values():
            node.spawn()

    def start(self) -> None:
        self.spawn()
        for node in self.nodes.values():
            node.wait_until_ready()

    def remove(self) -> None:
        """Everything is gone, processes and data."""
        for node in self.nodes.values():
            node.kill()
        shutil.rmtree(self.home, ignore_errors=True)


class KafkaCluster(Cluster):
    kind = Kafka.kind
    policies: ClassVar[Mapping[Policy, Mapping[str, str]]] = {
        policy: {**configs, **_MIN_INSYNC} for policy, configs in Kafka.policies.items()
    }

    def make_nodes(self, processes: Processes, seats: Sequence[Seat]) -> Mapping[int, Broker]:
        cluster_id, controllers = random_id(), ",".join(f"{HOST}:{seat.voter_port}" for seat in seats)
        voters = ",".join(f"{seat.node_id}@{HOST}:{seat.voter_port}:{random_id()}" for seat in seats)

        def made(seat: Seat) -> _KafkaNode:
            return _KafkaNode(processes, self.home / f"node-{seat.node_id}", seat, cluster_id, controllers, voters)

        with ThreadPoolExecutor(NODES) as pool:  # formatting takes a JVM's start each
            return {node.seat.node_id: node for node in pool.map(made, seats)}


class HeadraceCluster(Cluster):
    kind = Headrace.kind
    extra: ClassVar[Mapping[str, object]] = {}  # what the YAML of each node has besides
    policies: ClassVar[Mapping[Policy, Mapping[str, str]]] = {
        policy: {**configs, **_MIN_INSYNC} for policy, configs in Headrace.policies.items()
    }

    def make_nodes(self, processes: Processes, seats: Sequence[Seat]) -> Mapping[int, Broker]:
        return {
            seat.node_id: _HeadraceNode(processes, self.home / f"node-{seat.node_id}", seat, seats, self.extra)
            for seat in seats
        }


class LongTimersCluster(HeadraceCluster):
    """With timers for a slow network: three to six seconds of silence before an election, by Raft's rule."""

    extra: ClassVar[Mapping[str, object]] = {
        "raft": {"heartbeat_interval_ms": 1_000, "election_timeout_min_ms": 3_000, "election_timeout_max_ms": 6_000}
    }


class ThreadSyncsCluster(HeadraceCluster):
    """Threads sync the logs: what io_uring does cannot be slowed down by a preloaded library."""

    extra: ClassVar[Mapping[str, object]] = {"log.flush.io.uring.enable": "false"}


class _KafkaNode(Kafka):
    def __init__(
        self, processes: Processes, home: Path, seat: Seat, cluster_id: str, controllers: str, voters: str
    ) -> None:
        self.seat, self._cluster_id, self._controllers, self._voters = seat, cluster_id, controllers, voters
        super().__init__(processes, home, _DEFAULTS, port=seat.port)

    def prepare(self) -> None:
        own = self.node_settings(self.seat.node_id, self.seat.voter_port)
        settings = {**own, "controller.quorum.bootstrap.servers": self._controllers, **self.settings}
        self.format(settings, "--initial-controllers", self._voters, "-t", self._cluster_id)


class _HeadraceNode(Headrace):
    def __init__(
        self, processes: Processes, home: Path, seat: Seat, seats: Sequence[Seat], extra: Mapping[str, object]
    ) -> None:
        self._seat, self._seats, self._extra = seat, seats, extra
        super().__init__(processes, home, _DEFAULTS, port=seat.port)

    def prepare(self) -> None:
        content = {
            **_addresses(self._seat),
            "storage_path": str(self.home / "data"),
            "cluster": {
                "initial_members": [_addresses(seat) for seat in self._seats],
                "bootstrap": self._seat is self._seats[0],
            },
            "etcd": {"client_addr": f"{HOST}:{self._seat.voter_client_port}"},
            **self.settings,
            **self._extra,
        }
        self._config.write_text(json.dumps(content))  # which is YAML too

    def command(self) -> list[str]:
        return [str(PROGRAM), "start", "--no-gateway", "--config", str(self._config)]

    @property
    def _config(self) -> Path:
        return self.home / "node.yaml"


def _addresses(seat: Seat) -> dict[str, object]:
    return {
        "node_id": seat.node_id,
        "api_addr": f"{HOST}:{seat.port}",
        "rpc_addr": f"{HOST}:{seat.voter_port}",
    }


KINDS: Mapping[type[Broker], type[Cluster]] = {Kafka: KafkaCluster, Headrace: HeadraceCluster}
