"""A node as a process: starts it, serves until SIGTERM or SIGINT, shuts down cleanly.

    python -m headrace.app.node --settings-json '{…}' [--ready-fd N]

The settings have been validated. When the node serves clients, one line of JSON with its addresses is written to the
descriptor.
"""

import asyncio
import json
import logging
import os
import resource
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from headrace.app.metadata_store import Metadata
from headrace.app.telemetry import ProcessTelemetry, broker_telemetry
from headrace.app.telemetry_context import BROKER, GRPC, TelemetryContext
from headrace.broker.runtime.event_loop import run_with_turn_ends
from headrace.broker.runtime.shutdown_steps import StopSteps
from headrace.broker.server import Broker
from headrace.config.settings import Settings, join_address
from headrace.model.errors import HeadraceError, StorageError
from headrace.process.runtime import (
    BROKER_SLICE_NS,
    SystemClock,
    set_scheduler_slice,
    tune_interpreter,
    write_log_lines,
)
from headrace.storage.directory.checkpoint_files import read_meta_properties
from headrace.storage.directory.directory_lock import DirectoryLock
from headrace.storage.io.file_system import FileSystem, OsFileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.telemetry.loop_lag_histogram import LoopLag

if TYPE_CHECKING:
    from headrace.app.sidecars import ApiSockets
    from headrace.broker.controller.failure_detector import BrokerFailureDetector
    from headrace.broker.controller.isolation_monitor import IsolationMonitor
    from headrace.process.supervisor import Sidecar

log = logging.getLogger(__name__)


class Node:
    """A broker with its data directory and its metadata store. `await start()` returns when it serves."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._clock = SystemClock()
        self._lock: DirectoryLock | None = None
        self._metadata = Metadata(settings, self._clock)
        self._never = asyncio.Event()
        self._looking_around: list[BrokerFailureDetector | IsolationMonitor] = []
        self.broker: Broker | None = None

    async def start(self) -> None:
        files: FileSystem = MemoryFiles() if self.settings.in_memory else OsFileSystem()
        if not self.settings.in_memory or self.settings.runs_etcd:
            self._lock = DirectoryLock(self.settings.data_dir)
            check_owner(files, self.settings)
        store = await self._metadata.open()
        self.broker = Broker(self.settings, self._clock, files, store, shares_store=self.settings.is_clustered)
        await self.broker.start()
        if self.settings.is_clustered:
            from headrace.broker.controller.failure_detector import BrokerFailureDetector
            from headrace.broker.controller.isolation_monitor import IsolationMonitor

            self._looking_around = [BrokerFailureDetector(self.broker, store), IsolationMonitor(self.broker)]
            for one in self._looking_around:
                one.start()

    @property
    def superseded(self) -> asyncio.Event:
        """Set when another process has registered with this node's id."""
        membership = self.broker.membership if self.broker is not None else None
        return membership.superseded if membership is not None else self._never

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        assert self.broker is not None, "start first"
        return {name: (one.host, one.port) for name, one in self.broker.server.bound.items()}

    async def stop(self) -> None:
        """Stops all parts. Every step runs, also after a failed one; raises the first failure at the end."""
        steps = StopSteps()
        for one in self._looking_around:
            await steps.run(one.stop)
        if self.broker is not None:
            await steps.run(self.broker.stop)
        await steps.run(self._metadata.close)
        if self._lock is not None:
            await steps.run(self._lock.release)
        steps.raise_first()


async def _serve(settings: Settings, ready_fd: int | None) -> None:
    set_scheduler_slice(BROKER_SLICE_NS)  # first: threads inherit it from the thread that starts them
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    node = Node(settings)
    doors = _open_doors(settings)  # before the broker starts, so that a port in use is reported without side effects
    observing = TelemetryContext.of(settings.telemetry, BROKER, GRPC)
    companions: list[Sidecar] = []
    telemetry: ProcessTelemetry | None = None
    stopping = StopSteps()
    try:
        if not await _started(node, stop):
            return
        telemetry = await _start_telemetry(node, observing)
        tune_interpreter()
        for name, (host, port) in node.addresses.items():
            log.info("node %d serves %s on %s port %d", settings.node_id, name, host, port)
        if ready_fd is not None:
            _tell_ready(node, doors, ready_fd)
        if doors is not None:
            companions = _start_companions(node, doors, observing)
        lag = LoopLag.if_asked_for()
        await _first(stop, node.superseded)
        log.info("stopping")
        if lag is not None:
            lag.write()
        if node.superseded.is_set():
            raise StorageError(f"another process runs as node {settings.node_id}; each node has an id of its own")
    finally:
        if telemetry is not None:
            await stopping.run(telemetry.stop)
        # Before the broker, so that requests in flight can complete.
        await stopping.run(partial(_stop_companions, companions))
        await stopping.run(node.stop)
    stopping.raise_first()  # unless an error caused the stop; that one is raised


async def _first(*events: asyncio.Event) -> None:
    """Returns when one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()


async def _started(node: Node, stop: asyncio.Event) -> bool:
    """Starts the node; returns False if `stop` was set first, because a node may wait long for other members."""
    starting, stopping = asyncio.ensure_future(node.start()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return False
        starting.result()
        return True
    finally:
        for future in (starting, stopping):
            future.cancel()
        await asyncio.wait((starting, stopping))


def check_owner(files: FileSystem, settings: Settings) -> None:
    """Raises StorageError for another node's directory before anything is started; the cluster id is checked later."""
    meta = read_meta_properties(files, settings.data_dir)
    if meta is not None and meta.node_id != settings.node_id:
        raise StorageError(
            f"{settings.data_dir} belongs to node {meta.node_id} of cluster {meta.cluster_id}, not to node"
            f" {settings.node_id}; each node has its own storage_path and node_id"
        )


def _open_doors(settings: Settings) -> "ApiSockets | None":
    if not settings.gateway.enabled:
        return None
    from headrace.app.sidecars import bind_api_sockets

    return bind_api_sockets(settings.gateway, settings.broker_ports)


async def _start_telemetry(node: Node, observing: TelemetryContext) -> ProcessTelemetry:
    assert node.broker is not None, "started first"
    telemetry = broker_telemetry(BROKER, node.broker)
    for_gateway = observing.sockets[BROKER] if node.settings.gateway.enabled else None
    where = await telemetry.start(for_gateway, node.settings.telemetry.metrics_addr)
    if where is not None:
        log.info("metrics of the broker on http://%s/metrics", join_address(*where))
    return telemetry


def _start_companions(node: Node, doors: "ApiSockets", observing: TelemetryContext) -> "list[Sidecar]":
    from headrace.app.sidecars import bootstrap_of, start_companions

    bootstrap = bootstrap_of(next(iter(node.addresses.values())))
    timeout_ms = node.settings.integer("request.timeout.ms")
    return start_companions(node.settings.gateway, bootstrap, timeout_ms, doors, observing)


async def _stop_companions(companions: "list[Sidecar]") -> None:
    await asyncio.gather(*(one.stop() for one in companions))


def _tell_ready(node: Node, doors: "ApiSockets | None", descriptor: int) -> None:
    """Writes one line for the parent process. HTTP is bound: requests queue until the gateway accepts them."""
    facts = {"listeners": node.addresses, "pid": os.getpid(), **({} if doors is None else doors.addresses())}
    os.write(descriptor, (json.dumps(facts) + "\n").encode())
    os.close(descriptor)


def _raise_descriptor_limit() -> None:
    """Raises the soft limit: ten thousand partitions and as many connections exceed a shell's default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(settings: Settings, ready_fd: int | None = None) -> int:
    """Serves in the foreground until SIGTERM or SIGINT; returns the exit code."""
    write_log_lines(settings.telemetry.log_format, BROKER)
    _raise_descriptor_limit()
    try:
        run_with_turn_ends(_serve(settings, ready_fd))
    except (HeadraceError, OSError) as error:
        log.critical("Stopping: %s", error)
        return 1
    return 0


def main(arguments: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m headrace.app.node", description=__doc__)
    parser.add_argument("--settings-json", required=True)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args(arguments)
    return run(Settings.from_json(options.settings_json), options.ready_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
