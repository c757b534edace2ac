"""The gRPC process: serves gRPC in front of a broker until SIGTERM or SIGINT.

    python -m headrace.app.grpc_process --settings-json '{…}' --bootstrap HOST:PORT

A process separate from REST, because a stream of large messages holds the GIL for milliseconds at a time, which would
add latency to small HTTP requests (ADR 7). Imports grpcio only where it serves.
"""

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from headrace.app.rest_process import LOOPBACK
from headrace.app.telemetry import ProcessTelemetry
from headrace.app.telemetry_context import GRPC, TelemetryContext
from headrace.config.settings import GatewaySettings, join_address
from headrace.process.runtime import step_back, tune_interpreter, write_log_lines
from headrace.process.supervisor import Sidecar, reserve

log = logging.getLogger(__name__)

GRPC_FLAG = "--grpc"


def reserve_grpc(settings: GatewaySettings) -> socket.socket:
    """Reserves the port without listening: grpcio does not accept a listening socket."""
    return reserve(settings.grpc_host, settings.grpc_port, GRPC_FLAG, "serve no gRPC with --no-gateway")


def grpc_companion(
    settings: GatewaySettings,
    bootstrap: str,
    request_timeout_ms: int,
    reserved: socket.socket,
    observing: TelemetryContext,
) -> Sidecar:
    host, port = reserved.getsockname()[:2]
    told = asdict(replace(settings, grpc_host=host, grpc_port=port))
    arguments = ["--settings-json", json.dumps(told), "--bootstrap", bootstrap]
    arguments += ["--request-timeout-ms", str(request_timeout_ms), "--observing-json", observing.to_json()]
    return Sidecar("gRPC server", "headrace.app.grpc_process", arguments, held=[reserved])


def log_address(host: str, port: int) -> None:
    where = join_address(host, port)
    if host.startswith(LOOPBACK):
        log.info("gRPC on %s, for this host only; --grpc 0.0.0.0:%d accepts other hosts", where, port)
    else:
        log.warning("gRPC on %s, for every client that can reach this address, without authentication", where)


async def serve(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, observing: TelemetryContext
) -> None:
    from headrace.api.grpc.server import RpcServer

    tune_interpreter()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    tracer = observing.tracer(GRPC)
    server = RpcServer(settings, bootstrap, request_timeout_ms, tracer)
    telemetry = ProcessTelemetry(GRPC, server.families, dict)
    await telemetry.start(observing.sockets.get(GRPC))  # first: metrics are available before the first request
    log_address(settings.grpc_host, await server.start(settings.grpc_host, settings.grpc_port))
    await stop.wait()
    await telemetry.stop()
    await server.stop()
    if tracer is not None:
        tracer.close()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.app.grpc_process", description=__doc__)
    parser.add_argument("--settings-json", default="{}")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--request-timeout-ms", type=int, default=30_000)
    parser.add_argument("--observing-json", default="{}")
    options = parser.parse_args(words)
    settings = replace(GatewaySettings(), **json.loads(options.settings_json))
    # SIGIO is sent when the parent ends; the default action ends this process
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    step_back(settings.nice)
    observing = TelemetryContext.from_json(options.observing_json)
    write_log_lines(observing.log_format, GRPC)
    try:
        asyncio.run(serve(settings, options.bootstrap, options.request_timeout_ms, observing))
    except OSError as error:
        log.error("gRPC: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
