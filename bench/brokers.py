"""A broker to be measured: started, stopped, killed, looked at. Says nothing about what is measured."""

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import ClassVar

from bench import topics
from bench.processes import BenchError, Process, Processes, tail

READY_S_MAX = 120.0  # Kafka after kill -9 with gigabytes to check is the slowest start seen here
_READY_POLL_S = 0.02


class Policy(Enum):
    """When an acks=all produce may be answered."""

    PAGE_CACHE = "page-cache"
    FSYNC = "fsync"


class Served(ABC):
    """What clients are pointed at: one broker, or several that are one cluster."""

    kind: ClassVar[str]
    policies: ClassVar[Mapping[Policy, Mapping[str, str]]]  # the topic configs that ask for a policy
    replicas: ClassVar[int] = 1  # of every topic that is made for a case

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @property
    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """The processes whose CPU and memory count, each with its descendants."""

    @property
    @abstractmethod
    def is_running(self) -> bool: ...


class Broker(Served):
    """One node on a free loopback port with a data directory of its own."""

    node_policies: ClassVar[Mapping[Policy, Mapping[str, str]]]  # the same for all topics, the internal ones too

    def __init__(
        self, processes: Processes, home: Path, settings: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        self.home = home
        self.settings = dict(settings or {})
        self.env: dict[str, str] = {}
        self.port = port or free_port()
        self._processes = processes
        self._process: Process | None = None
        home.mkdir(parents=True)
        self.prepare()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.home / "broker.log"

    @property
    def pid(self) -> int:
        if self._process is None or self._process.poll() is not None:
            raise BenchError(f"{self.kind} is not running: {tail(self.log)}")
        return self._process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def prepare(self) -> None:
        """What has to be done once before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of the node."""

    def spawn(self) -> None:
        """Start the node without waiting for it."""
        self._process = self._processes.start(self.command(), log=self.log, env=self.env)

    def start(self) -> None:
        """Start the node and wait until it answers clients."""
        self.spawn()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while not (_port_is_open(self.port) and topics.answers(self.bootstrap)):
            if not self.is_running:
                raise BenchError(f"{self.kind} ended while starting: {tail(self.log)}")
            if time.monotonic() > deadline:
                raise BenchError(f"{self.kind} was not ready after {READY_S_MAX:.0f} s: {tail(self.log)}")
            time.sleep(_READY_POLL_S)

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            self._processes.stop(process)

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process is not None:
            process, self._process = self._process, None
            self._processes.kill(process)

    def pause(self) -> None:
        """As kill -STOP does, with every process of the node."""
        self._processes.pause(self.pid)

    def resume(self) -> None:
        self._processes.resume(self.pid)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
