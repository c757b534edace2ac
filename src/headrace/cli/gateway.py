"""`headrace gateway`: the REST and gRPC servers without a broker, for a broker on another host."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.errors import fail_usage, failures_told
from headrace.cli.common.exit_codes import examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from headrace.cli.start import GRPC_KEYS, HTTP_KEYS, address_flags, set_flags
from headrace.client.librdkafka import bootstrap_addresses
from headrace.config.loader import SettingsError, load_settings

EPILOG = examples(
    "headrace gateway --bootstrap broker-1:9092,broker-2:9092",
    "headrace gateway --http 0.0.0.0:8080 --set acks=leader",
)


def gateway(
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Address for REST (default 127.0.0.1:8080).")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Address for gRPC (default 127.0.0.1:9090).")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with settings.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any setting; repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve REST and gRPC for a broker on another host, in the foreground.

    May start before the broker, and reconnects when the broker restarts.
    """
    with failures_told(bootstrap):
        bootstrap_addresses(bootstrap)
        try:
            flags = list(set_flags(set_ or []))
            flags += address_flags("--http", http, HTTP_KEYS) if http is not None else []
            flags += address_flags("--grpc", grpc, GRPC_KEYS) if grpc is not None else []
            settings = load_settings(None if config is None else str(config), os.environ, flags).settings
        except SettingsError as refused:
            fail_usage("; ".join(refused.problems))
        from headrace.app.sidecars import bind_api_sockets, run_alone
        from headrace.app.telemetry_context import GATEWAY, GRPC, TelemetryContext
        from headrace.process.runtime import write_log_lines

        write_log_lines(settings.telemetry.log_format, GATEWAY)
        timeout_ms = settings.integer("request.timeout.ms")
        observing = TelemetryContext.of(settings.telemetry, GRPC)  # the broker's host serves its metrics
        asyncio.run(run_alone(settings.gateway, bootstrap, timeout_ms, bind_api_sockets(settings.gateway), observing))
