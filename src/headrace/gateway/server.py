"""Runs the application: uvicorn on a socket that is already open, until SIGTERM or SIGINT."""

import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import uvicorn

from headrace.gateway.app import build_app
from headrace.gateway.protocol import LimitedProtocol
from headrace.gateway.services import RebalanceReader
from headrace.gateway.traced import Traced
from headrace.model.settings import GatewaySettings
from headrace.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

# Longer than the pauses of a person at a terminal and of most connection pools.
KEEP_ALIVE_S = 75
# What is under way may finish; streams are told to end and need a moment to say so.
GRACEFUL_S = 5
FAILED = 1


def serve(
    settings: GatewaySettings,
    bootstrap: str,
    request_timeout_ms: int,
    http: socket.socket,
    read_rebalances: RebalanceReader,
    neighbours: Mapping[str, str],
    tracer: Tracer | None = None,
) -> int:
    """`neighbours` are the sockets of the node's other processes, by their part, which tell their figures there."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # it tells of every start and stop
    app, front = build_app(settings, bootstrap, request_timeout_ms, read_rebalances, neighbours)
    config = uvicorn.Config(
        front if tracer is None else Traced(front, tracer),
        http=LimitedProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    server = Server(config, app.state.stop)
    server.run(sockets=[http])
    return 0 if server.started else FAILED


class Server(uvicorn.Server):
    """Tells the streams to end before it waits for them."""

    def __init__(self, config: uvicorn.Config, tell_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell_stop = tell_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own would send itself the signal again at the end: a stop that was asked for is a success."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._tell_stop()
        await super().shutdown(sockets)
