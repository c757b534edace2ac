"""What stands beside a broker: REST and gRPC, each a process and a client of the broker's.

Decides which ports they have before anything is started, so that a taken one is told while nothing has happened yet.
"""

import asyncio
import signal
import socket
from typing import NamedTuple

from headrace.app.gateway import http_companion, listen_http
from headrace.app.observing import Observing
from headrace.app.rpc import grpc_companion, reserve_grpc
from headrace.app.supervisor import Companion
from headrace.model.settings import GatewaySettings, join_address

# How a wildcard is reached from this machine.
_REACHED_BY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, never bound)


class Doors(NamedTuple):
    http: socket.socket
    grpc: socket.socket

    def addresses(self) -> dict[str, list[str | int]]:
        return {"http": list(self.http.getsockname()[:2]), "grpc": list(self.grpc.getsockname()[:2])}

    def close(self) -> None:
        self.http.close()
        self.grpc.close()


def open_doors(settings: GatewaySettings) -> Doors:
    http = listen_http(settings)
    try:
        return Doors(http, reserve_grpc(settings))
    except BaseException:
        http.close()
        raise


def bootstrap_of(broker_address: tuple[str, int]) -> str:
    host, port = broker_address
    return join_address(_REACHED_BY.get(host, host), port)


def start_companions(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, doors: Doors, observing: Observing
) -> list[Companion]:
    made = [
        http_companion(settings, bootstrap, request_timeout_ms, doors.http, observing),
        grpc_companion(settings, bootstrap, request_timeout_ms, doors.grpc, observing),
    ]
    for companion in made:
        companion.start()
    return made


async def run_alone(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, doors: Doors, observing: Observing
) -> None:
    """In front of a broker that runs elsewhere, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    companions = start_companions(settings, bootstrap, request_timeout_ms, doors, observing)
    try:
        await stop.wait()
    finally:
        await asyncio.gather(*(one.stop() for one in companions))
