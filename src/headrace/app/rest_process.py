"""The REST process: serves HTTP in front of a broker until SIGTERM or SIGINT.

    python -m headrace.app.rest_process --settings-json '{…}' --bootstrap HOST:PORT [--listen-fd N]

Its parts are clients of the broker and do not depend on broker internals. Only this process imports it: its imports
take longer than a broker's start.
"""

import argparse
import json
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from headrace.app.telemetry_context import GATEWAY, TelemetryContext
from headrace.config.settings import GatewaySettings, join_address
from headrace.process.runtime import step_back, tune_interpreter, write_log_lines
from headrace.process.supervisor import Sidecar, listen

log = logging.getLogger(__name__)

HTTP_FLAG = "--http"
LOOPBACK = ("127.", "::1", "localhost")


def listen_http(settings: GatewaySettings) -> socket.socket:
    return listen(settings.host, settings.port, HTTP_FLAG, "serve no HTTP with --no-gateway")


def log_address(made: socket.socket) -> None:
    host, port = made.getsockname()[:2]
    where = f"http://{join_address(host, port)}"
    if host.startswith(LOOPBACK):
        log.info("REST on %s, for this host only; --http 0.0.0.0:%d accepts other hosts", where, port)
    else:
        log.warning("REST on %s, for every client that can reach this address, without authentication", where)


def http_companion(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, http: socket.socket, observing: TelemetryContext
) -> Sidecar:
    arguments = ["--settings-json", json.dumps(asdict(settings)), "--bootstrap", bootstrap]
    arguments += ["--request-timeout-ms", str(request_timeout_ms), "--observing-json", observing.to_json()]
    return Sidecar("gateway", "headrace.app.rest_process", arguments, [http])


def run(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, http: socket.socket, observing: TelemetryContext
) -> int:
    """Serves in the foreground until SIGTERM or SIGINT; returns the exit code."""
    write_log_lines(observing.log_format, GATEWAY)
    from headrace.api.rest.server import serve
    from headrace.app.rebalance_history import read_history

    tune_interpreter()
    log_address(http)
    tracer = observing.tracer(GATEWAY)
    try:
        return serve(settings, bootstrap, request_timeout_ms, http, read_history, observing.sockets, tracer)
    finally:
        if tracer is not None:
            tracer.close()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.app.rest_process", description=__doc__)
    parser.add_argument("--settings-json", default="{}")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--request-timeout-ms", type=int, default=30_000)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--observing-json", default="{}")
    options = parser.parse_args(words)
    settings = replace(GatewaySettings(), **json.loads(options.settings_json))
    # SIGIO is sent when the parent ends; the default action ends this process
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    step_back(settings.nice)
    http = listen_http(settings) if options.listen_fd is None else socket.socket(fileno=options.listen_fd)
    observing = TelemetryContext.from_json(options.observing_json)
    return run(settings, options.bootstrap, options.request_timeout_ms, http, observing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
