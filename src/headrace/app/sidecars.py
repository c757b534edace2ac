"""Sidecar processes of a broker: REST and gRPC, each a client of the broker.

Binds their ports before anything is started, so that a port in use is reported without side effects.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from headrace.app.grpc_process import grpc_companion, reserve_grpc
from headrace.app.rest_process import http_companion, listen_http
from headrace.app.telemetry_context import TelemetryContext
from headrace.config.settings import PORT_MAX, GatewaySettings, join_address
from headrace.process.supervisor import PortTaken, Sidecar

log = logging.getLogger(__name__)

# Ports tried after a default port in use. More nodes than this on one host need configured ports.
PORTS_TRIED = 100
# Ports on which brokers of one host usually listen; one of them may start after this node.
KAFKA_PORTS = range(9092, 9100)
# How long a configured port in use is retried. The sidecars of a node that was killed end with it, but on a busy host
# the kernel closes their sockets a moment later; a restart of the node at once would fail.
PORT_RETRY_S_MAX = 2.0
PORT_RETRY_S = 0.05
# Address by which this host reaches a wildcard listener.
_REACHED_BY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, never bound)


class ApiSockets(NamedTuple):
    http: socket.socket
    grpc: socket.socket

    def addresses(self) -> dict[str, list[str | int]]:
        return {"http": list(self.http.getsockname()[:2]), "grpc": list(self.grpc.getsockname()[:2])}

    def close(self) -> None:
        self.http.close()
        self.grpc.close()


def bind_api_sockets(settings: GatewaySettings, broker_ports: Collection[int] = ()) -> ApiSockets:
    """Binds both ports. `broker_ports` never replace one in use, because brokers that start later need them."""
    http = _first_free(
        "REST",
        lambda port: listen_http(replace(settings, port=port)),
        settings.port,
        settings.port_moves,
        broker_ports,
    )
    try:
        grpc = _first_free(
            "gRPC",
            lambda port: reserve_grpc(replace(settings, grpc_port=port)),
            settings.grpc_port,
            settings.grpc_port_moves,
            broker_ports,
        )
    except BaseException:
        http.close()
        raise
    return ApiSockets(http, grpc)


def _first_free(
    what: str, open_at: Callable[[int], socket.socket], port: int, moves: bool, avoided: Collection[int]
) -> socket.socket:
    """Opens the port or, if no setting names it, the next free one."""
    if not moves:
        return open_with_retries(lambda: open_at(port))
    try:
        return open_at(port)
    except PortTaken as taken:
        for other in range(port + 1, min(port + PORTS_TRIED, PORT_MAX) + 1):
            if other in avoided or other in KAFKA_PORTS:
                continue
            with suppress(PortTaken):
                made = open_at(other)
                log.info("Port %d is in use; %s takes the next free one, %d", port, what, other)
                return made
        raise taken


def open_with_retries(
    open_port: Callable[[], socket.socket], sleep: Callable[[float], None] = time.sleep
) -> socket.socket:
    """Opens a port. Retries for PORT_RETRY_S_MAX while it is in use, then raises PortTaken."""
    for _ in range(round(PORT_RETRY_S_MAX / PORT_RETRY_S)):
        with suppress(PortTaken):
            return open_port()
        sleep(PORT_RETRY_S)
    return open_port()


def bootstrap_of(broker_address: tuple[str, int]) -> str:
    host, port = broker_address
    return join_address(_REACHED_BY.get(host, host), port)


def start_companions(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, doors: ApiSockets, observing: TelemetryContext
) -> list[Sidecar]:
    made = [
        http_companion(settings, bootstrap, request_timeout_ms, doors.http, observing),
        grpc_companion(settings, bootstrap, request_timeout_ms, doors.grpc, observing),
    ]
    for companion in made:
        companion.start()
    return made


async def run_alone(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, doors: ApiSockets, observing: TelemetryContext
) -> None:
    """Runs REST and gRPC in front of a broker elsewhere, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    companions = start_companions(settings, bootstrap, request_timeout_ms, doors, observing)
    try:
        await stop.wait()
    finally:
        await asyncio.gather(*(one.stop() for one in companions))
