"""Several brokers as processes of their own, sharing one store of facts: a real cluster for a test, in a second.

    with LocalCluster(3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.kill(cluster.leader("orders", 0))

Decides where the brokers listen and keep their data. What each of them is, `local_broker.py` says.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from headrace.app.metadata_process import MetadataProcess
from headrace.testing.local_broker import LocalBroker


class LocalCluster:
    """Brokers are named by their ids: 1 to the number of nodes."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        memory: bool = True,
        settings: Mapping[str, str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        ports: Mapping[int, int] | None = None,
    ) -> None:
        """With `memory` each broker loses its records with its process, and copies them anew from the others."""
        self._memory = memory and data_dir is None
        self._given_dir = None if data_dir is None else os.fspath(data_dir)
        self._settings = {"default.replication.factor": str(min(nodes, 3)), **(settings or {})}
        self._ports = dict(ports or {})
        self._folder = ""
        self._metadata: MetadataProcess | None = None
        self._ids = range(1, nodes + 1)
        self.brokers: dict[int, LocalBroker] = {}

    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`: all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        """Returns when every broker serves."""
        self._folder = self._given_dir or tempfile.mkdtemp(prefix="headrace-")
        os.makedirs(self._folder, exist_ok=True)
        socket_path = os.path.join(self._folder, "metadata.socket")
        file = None if self._memory else os.path.join(self._folder, "metadata.sqlite")
        self._metadata = MetadataProcess(socket_path, file)
        for node_id in self._ids:
            self.brokers[node_id] = self._broker(node_id, socket_path)
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(LocalBroker.start, self.brokers.values()))

    def _broker(self, node_id: int, socket_path: str) -> LocalBroker:
        own = {"node.id": str(node_id), "metadata": f"unix://{socket_path}"}
        return LocalBroker(
            memory=self._memory,
            data_dir=None if self._memory else os.path.join(self._folder, f"broker-{node_id}"),
            settings={**self._settings, **own},
            port=self._ports.get(node_id, 0),
        )

    # Faults

    def kill(self, node_id: int) -> None:
        """SIGKILL: no shutdown, no last words."""
        self.brokers[node_id].kill()

    def stop(self, node_id: int) -> None:
        """A clean stop: what the broker leads is handed over first."""
        self.brokers[node_id].stop()

    def restart(self, node_id: int) -> None:
        """The same broker again, on its port: after `kill` or `stop`, or with a clean stop first."""
        self.brokers[node_id].restart()

    def pause(self, node_id: int) -> None:
        """SIGSTOP: it neither answers nor renews its session, and does not know it."""
        os.kill(self.brokers[node_id].pid, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        os.kill(self.brokers[node_id].pid, signal.SIGCONT)

    # Asking

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, as a client is told; -1 while nobody does."""
        from headrace.client.factory import make_admin

        alive = ",".join(broker.bootstrap for broker in self.brokers.values() if broker.running)
        found = make_admin(alive).list_topics(topic, timeout=10)
        leader: int = found.topics[topic].partitions[partition].leader
        return leader

    # Ending

    def close(self) -> None:
        """Stop everything, and give back ports and temporary data."""
        first_trouble: Exception | None = None
        for broker in self.brokers.values():
            try:
                broker.close()
            except Exception as error:
                first_trouble = first_trouble or error
        self.brokers = {}
        if self._metadata is not None:
            self._metadata.stop()
            self._metadata = None
        if self._given_dir is None and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if first_trouble is not None:
            raise first_trouble

    def __enter__(self) -> "LocalCluster":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for node_id, broker in self.brokers.items():
                if broker.output():
                    error.add_note(f"--- output of broker {node_id} ---\n{broker.output()}")
        self.close()
