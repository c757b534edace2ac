"""LocalBroker: a complete broker on a free port, for the duration of a `with` block.

    with LocalBroker(settings={"num.partitions": "3"}) as broker:
        Producer({"bootstrap.servers": broker.bootstrap})

This module has addresses, data directories, and the output that a failing test shows. The broker runs as a process
(`app/local_cluster/processes.py`) or as a thread (`broker_thread.py`).
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Protocol
from weakref import WeakSet

from headrace.config.loader import load_settings
from headrace.config.settings import Settings
from headrace.model.errors import InvalidConfig
from headrace.process.sockets import reserve_port

# A number: a name could resolve to ::1 for one client and to 127.0.0.1 for the next.
HOST = "127.0.0.1"
OUTPUT_SHOWN_BYTES = 16 * 1024  # what a failing test shows of the broker's output: about 150 lines


# Brokers between their first start and `close`: the pytest plugin shows their output when a test fails.
_open: WeakSet["LocalBroker"] = WeakSet()


class Runner(Protocol):
    """A running broker: in a process of its own, or on a thread."""

    pid: int

    def stop(self) -> None:
        """Shuts down cleanly. Returns when the broker has ended."""

    def kill(self) -> None:
        """Ends the broker without a shutdown, like `kill -9` or a crash."""

    def ended_by_itself(self) -> str | None:
        """Returns why the broker has ended although it was not stopped; None otherwise."""


class LocalBroker:
    """A broker for one test: real sockets, a free port, and complete clean-up."""

    def __init__(
        self,
        *,
        memory: bool | None = None,
        settings: Mapping[str, str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        in_process: bool = False,
        port: int = 0,
        gateway: bool = False,
        internal_ports: tuple[int, int] | None = None,
    ) -> None:
        """Creates a broker without starting it.

        `memory` is the default unless a `data_dir` is given; `settings` are configs by Kafka's names. With `gateway`,
        REST and gRPC are served beside the broker, at `http_url` and `grpc_address`. `internal_ports` are the port on
        which the broker listens for other brokers, and the port that it advertises to them.
        """
        if gateway and in_process:
            raise ValueError("the gateway needs a broker in a process of its own: use either gateway or in_process")
        if memory and data_dir is not None:
            raise ValueError("a broker in memory has no data_dir; leave one of the two out")
        self._memory = data_dir is None if memory is None else memory
        self._overrides = dict(settings or {})
        self._given_dir = None if data_dir is None else os.fspath(data_dir)
        self._in_process = in_process
        self._wanted_port = port
        self._with_gateway = gateway
        self._internal_ports = internal_ports
        self._reservation: socket.socket | None = None
        self._http_reservation: socket.socket | None = None
        self._grpc_reservation: socket.socket | None = None
        self._data_dir: str | None = None
        self._output: IO[bytes] | None = None  # one for all restarts
        self._said = ""
        self._runner: Runner | None = None

    @property
    def port(self) -> int:
        """The port; the same after `restart`, so that clients find their broker again."""
        if self._reservation is None:
            raise RuntimeError("the broker has not been started")
        port: int = self._reservation.getsockname()[1]
        return port

    @property
    def bootstrap(self) -> str:
        """The value for clients' `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def http_url(self) -> str:
        """The URL of the REST API, e.g. http://127.0.0.1:54321; the same after `restart`."""
        if self._http_reservation is None:
            raise RuntimeError("no gateway: LocalBroker(gateway=True), and started")
        return f"http://{HOST}:{self._http_reservation.getsockname()[1]}"

    @property
    def grpc_address(self) -> str:
        """The address for gRPC channels; the same after `restart`."""
        if self._grpc_reservation is None:
            raise RuntimeError("no gateway: LocalBroker(gateway=True), and started")
        return f"{HOST}:{self._grpc_reservation.getsockname()[1]}"

    @property
    def data_dir(self) -> str:
        """The data directory; a broker in memory has none."""
        if self._data_dir is None:
            raise RuntimeError("this broker keeps nothing on disk: it runs in memory, or was not started")
        return self._data_dir

    @property
    def pid(self) -> int:
        if self._runner is None:
            raise RuntimeError("the broker does not run")
        return self._runner.pid

    @property
    def running(self) -> bool:
        return self._runner is not None and self._runner.ended_by_itself() is None

    def output(self) -> str:
        """The broker's output so far: its log, and the error if it crashed. Empty in process."""
        if self._output is None:
            return self._said
        size = os.fstat(self._output.fileno()).st_size
        start = max(0, size - OUTPUT_SHOWN_BYTES)
        return os.pread(self._output.fileno(), OUTPUT_SHOWN_BYTES, start).decode(errors="replace")

    def start(self) -> None:
        """Starts the broker. Returns when it serves; raises if it runs already."""
        if self._runner is not None:
            raise RuntimeError("the broker runs already")
        if self._reservation is None:
            self._reservation = reserve_port(self._wanted_port)
        if self._with_gateway and self._http_reservation is None:
            self._http_reservation, self._grpc_reservation = reserve_port(0), reserve_port(0)
        if not self._memory and self._data_dir is None:
            self._data_dir = self._given_dir or tempfile.mkdtemp(prefix="headrace-")
        self._runner = self._start_runner(self._settings())
        _open.add(self)

    def _start_runner(self, settings: Settings) -> Runner:
        if self._in_process:
            from headrace.testing.local.broker_thread import BrokerThread

            return BrokerThread(settings)
        from headrace.app.local_cluster.processes import BrokerProcess

        if self._output is None:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        return BrokerProcess(settings, self._output.fileno())

    def _settings(self) -> Settings:
        made = (self._http_reservation, self._grpc_reservation)
        ports = [one.getsockname()[1] for one in made if one is not None]
        return node_settings(
            self._overrides,
            port=self.port,
            data_dir=self._data_dir,
            gateway_ports=ports,
            internal_ports=self._internal_ports,
        )

    def stop(self) -> None:
        """Shuts down cleanly. Port and data stay reserved for `restart` until the `with` block ends."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        reason = runner.ended_by_itself()
        runner.stop()
        if reason is not None:
            raise RuntimeError(f"the broker ended by itself: {reason}\n{self.output()}")

    def kill(self) -> None:
        """Kills the broker (SIGKILL). Acknowledged records must be there after `restart`."""
        runner, self._runner = self._runner, None
        if runner is None:
            raise RuntimeError("the broker does not run")
        runner.kill()

    def restart(self) -> None:
        """Restarts the broker on its port and data; after `kill`, or with a clean shutdown first."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the broker, and releases port, temporary data and captured output."""
        try:
            self.stop()
        finally:
            if self._reservation is not None:
                self._reservation.close()
                self._reservation = None
            for one in (self._http_reservation, self._grpc_reservation):
                if one is not None:
                    one.close()
            self._http_reservation = self._grpc_reservation = None
            if self._given_dir is None and self._data_dir is not None:
                shutil.rmtree(self._data_dir)
            self._data_dir = None
            if self._output is not None:
                self._said = self.output()
                self._output.close()
                self._output = None
            _open.discard(self)

    def __enter__(self) -> "LocalBroker":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.output():
            error.add_note(f"--- output of the broker ---\n{self.output()}")
        self.close()


def open_brokers() -> list[LocalBroker]:
    """Returns every LocalBroker that has been started and not closed."""
    return list(_open)


_GATEWAY_KEYS = ("host", "port", "grpc.host", "grpc.port")


def node_settings(
    overrides: Mapping[str, str],
    *,
    port: int,
    data_dir: str | None,
    gateway_ports: Sequence[int] = (),
    internal_ports: tuple[int, int] | None = None,
) -> Settings:
    """Returns settings from config file keys, with the addresses and the data directory that LocalBroker chooses."""
    for name in ("listeners", "listen", "log.dirs", "log.dir", "storage", "storage_path", *_GATEWAY_KEYS):
        if name in overrides:
            raise InvalidConfig(f"{name}: LocalBroker decides this; use its arguments port, memory, data_dir, gateway")
    own = {"listeners": f"PLAINTEXT://{HOST}:{port}"}
    if internal_ports is not None:
        bound, told = internal_ports
        own = {
            "listeners": f"PLAINTEXT://{HOST}:{port},INTERNAL://{HOST}:{bound}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port},INTERNAL://{HOST}:{told}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        }
    own |= {"storage": "memory"} if data_dir is None else {"storage": "disk", "log.dirs": data_dir}
    if gateway_ports:
        http, grpc = gateway_ports
        own |= {"host": HOST, "port": str(http), "grpc.host": HOST, "grpc.port": str(grpc)}
    else:
        own |= {"gateway.enabled": "false"}
    texts = {**own, **overrides}
    return load_settings(None, {}, [(name, str(text), "") for name, text in texts.items()]).settings
