"""LocalCluster: several brokers as processes, with one metadata store: a real cluster for tests, started in a second.

    with LocalCluster(3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.kill(cluster.leader("orders", 0))

    with LocalCluster(3, links=True) as cluster:
        cluster.partition(1, 2)
        cluster.heal()

This module has the brokers' addresses and data directories. Each broker is a LocalBroker (`broker.py`); connections
between them are partitioned by `network_links.py`.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from headrace.app.local_cluster.processes import MetadataProcess
from headrace.process.sockets import reserve_port
from headrace.testing.local.broker import LocalBroker
from headrace.testing.local.etcd import LocalEtcd
from headrace.testing.local.network_links import STORE, NetworkLinks
from headrace.testing.local.small_disk import fill_disk, free_disk, mount_small_disk, unmount
from headrace.testing.local.suspend import resume, suspend

METADATA = STORE  # the metadata store, as an argument of `partition`
# Brokers respond within a second or two after one of them failed; a busy host needs longer.
ANSWER_SECONDS_MAX = 30.0


class LocalCluster:
    """A cluster of brokers with the ids 1 to `nodes`."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        memory: bool = True,
        settings: Mapping[str, str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        ports: Mapping[int, int] | None = None,
        racks: Mapping[int, str] | None = None,
        etcd: int = 0,
        links: bool = False,
        disk_bytes: int | None = None,
    ) -> None:
        """With `memory`, each broker loses its records with its process, and replicates them again from the others.

        `etcd` is the number of members of a real etcd cluster as metadata store, instead of one process with an
        embedded store. `links` enables `partition`. `disk_bytes` gives each broker a disk of that size (a tmpfs,
        which needs root), and enables `disk_full`.
        """
        self._memory = memory and data_dir is None and disk_bytes is None
        if etcd and links:
            raise ValueError("links lead to the embedded store; leave etcd or links out")
        self._racks = dict(racks or {})
        self._etcd = LocalEtcd(etcd) if etcd else None
        self._with_links = links
        self._links: NetworkLinks | None = None
        self._disk_bytes = disk_bytes
        self._reserved: list[socket.socket] = []
        self._given_dir = None if data_dir is None else os.fspath(data_dir)
        self._settings = {"default.replication.factor": str(min(nodes, 3)), **(settings or {})}
        self._ports = dict(ports or {})
        self._folder = ""
        self._metadata: MetadataProcess | None = None
        self._ids = range(1, nodes + 1)
        self.brokers: dict[int, LocalBroker] = {}

    @property
    def bootstrap(self) -> str:
        """The value for clients' `bootstrap.servers`: all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        """Starts the cluster. Returns when every broker serves."""
        self._folder = self._given_dir or tempfile.mkdtemp(prefix="headrace-")
        os.makedirs(self._folder, exist_ok=True)
        socket_path = os.path.join(self._folder, "metadata.socket")
        if self._etcd is not None:
            self._etcd.start()
        else:
            file = None if self._memory else os.path.join(self._folder, "metadata.sqlite")
            self._metadata = MetadataProcess(socket_path, file)
        if self._with_links:
            self._links = NetworkLinks(
                lambda: {one: broker.pid for one, broker in self.brokers.items() if broker.running}
            )
        for node_id in self._ids:
            if self._disk_bytes is not None:
                mount_small_disk(self._data_of(node_id), self._disk_bytes)
            self.brokers[node_id] = self._broker(node_id, socket_path)
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(LocalBroker.start, self.brokers.values()))

    def _data_of(self, node_id: int) -> str:
        return os.path.join(self._folder, f"broker-{node_id}")

    def _broker(self, node_id: int, socket_path: str) -> LocalBroker:
        internal_ports = None
        if self._links is not None:
            reserved = reserve_port(0)
            self._reserved.append(reserved)
            listens: int = reserved.getsockname()[1]
            internal_ports = (listens, self._links.to_broker(node_id, listens))
            own_path = os.path.join(self._folder, f"metadata-{node_id}.socket")
            self._links.to_store(node_id, own_path, socket_path)
            socket_path = own_path
        facts = f"unix://{socket_path}" if self._etcd is None else f"etcd://{','.join(self._etcd.endpoints)}"
        own = {"node.id": str(node_id), "metadata": facts}
        own |= {"broker.rack": self._racks[node_id]} if node_id in self._racks else {}
        return LocalBroker(
            memory=self._memory,
            data_dir=None if self._memory else self._data_of(node_id),
            settings={**self._settings, **own},
            port=self._ports.get(node_id, 0),
            internal_ports=internal_ports,
        )

    # Faults

    def kill(self, node_id: int) -> None:
        """Kills a broker (SIGKILL), without a shutdown."""
        self.brokers[node_id].kill()

    def stop(self, node_id: int) -> None:
        """Stops a broker cleanly: it hands over its partitions' leadership first."""
        self.brokers[node_id].stop()

    def restart(self, node_id: int) -> None:
        """Restarts a broker on its port; after `kill` or `stop`, or with a clean stop first."""
        self.brokers[node_id].restart()

    def pause(self, node_id: int) -> None:
        """Suspends a broker (SIGSTOP): it neither responds nor renews its session, without noticing."""
        suspend(self.brokers[node_id].pid)

    def resume(self, node_id: int) -> None:
        resume(self.brokers[node_id].pid)

    def partition(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Partitions two brokers: nothing arrives in either direction, or with `one_way` only from `other` at `one`.

        `METADATA` stands for the metadata store, on either side. Clients reach all brokers.
        """
        links = self._cuttable()
        links.cut(one, other)
        if not one_way:
            links.cut(other, one)

    def heal(self) -> None:
        """Ends all partitions."""
        self._cuttable().heal()

    def _cuttable(self) -> NetworkLinks:
        if self._links is None:
            raise RuntimeError("partitioning brokers needs LocalCluster(links=True)")
        return self._links

    def kill_etcd(self, member: int) -> None:
        """Kills an etcd member (SIGKILL), counted from 0."""
        self._members().kill(member)

    def restart_etcd(self, member: int) -> None:
        """Restarts an etcd member after `kill_etcd`."""
        self._members().restart(member)

    def _members(self) -> LocalEtcd:
        if self._etcd is None:
            raise RuntimeError("the metadata is in etcd only with LocalCluster(etcd=…)")
        return self._etcd

    def disk_full(self, node_id: int) -> None:
        """Fills the broker's disk with other data."""
        fill_disk(self._small_disk(node_id))

    def disk_freed(self, node_id: int) -> None:
        """Frees the disk space that `disk_full` has used."""
        free_disk(self._small_disk(node_id))

    def _small_disk(self, node_id: int) -> str:
        if self._disk_bytes is None:
            raise RuntimeError("brokers have a disk of their own only in LocalCluster(disk_bytes=…)")
        return self._data_of(node_id)

    # Queries

    def leader(self, topic: str, partition: int = 0) -> int:
        """Returns the leader of a partition from client metadata; -1 without a leader and for an unknown partition."""
        from headrace.client.librdkafka import make_admin

        alive = ",".join(broker.bootstrap for broker in self.brokers.values() if broker.running)
        found = make_admin(alive).list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics.get(topic)
        told = found.partitions.get(partition) if found is not None else None
        return -1 if told is None else int(told.leader)

    # Clean-up

    def close(self) -> None:
        """Stops all processes, and releases ports and temporary data."""
        first_trouble: Exception | None = None
        for broker in self.brokers.values():
            try:
                broker.close()
            except Exception as error:
                first_trouble = first_trouble or error
        self.brokers = {}
        if self._links is not None:
            self._links.close()
            self._links = None
        for reserved in self._reserved:
            reserved.close()
        self._reserved = []
        if self._metadata is not None:
            self._metadata.stop()
            self._metadata = None
        if self._etcd is not None:
            self._etcd.close()
            self._etcd = None
        if self._disk_bytes is not None:
            for node_id in self._ids:
                unmount(self._data_of(node_id))
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
