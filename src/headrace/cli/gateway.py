"""`headrace gateway`: REST and gRPC alone, in front of a broker that runs elsewhere."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.app.config_file import SettingsRefused, load_settings
from headrace.cli.exit_codes import examples
from headrace.cli.failures import fail_usage, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap
from headrace.cli.start import GRPC_KEYS, HTTP_KEYS, address_flags, set_flags
from headrace.client.factory import bootstrap_addresses

EPILOG = examples(
    "headrace gateway --bootstrap broker-1:9092,broker-2:9092",
    "headrace gateway --http 0.0.0.0:8080 --set acks=leader",
)


def gateway(
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Where REST is served (default 127.0.0.1:8080).")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Where gRPC is served (default 127.0.0.1:9090).")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with settings.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any setting.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve REST and gRPC in front of any broker, in the foreground.

    They may be started before their broker, and outlive the broker's restarts.
    """
    with failures_told(bootstrap):
        bootstrap_addresses(bootstrap)
        try:
            flags = list(set_flags(set_ or []))
            flags += address_flags("--http", http, HTTP_KEYS) if http is not None else []
            flags += address_flags("--grpc", grpc, GRPC_KEYS) if grpc is not None else []
            settings = load_settings(None if config is None else str(config), os.environ, flags).settings
        except SettingsRefused as refused:
            fail_usage("; ".join(refused.problems))
        from headrace.app.companions import open_doors, run_alone
        from headrace.app.log_lines import write_log_lines
        from headrace.app.observing import GATEWAY, GRPC, Observing

        write_log_lines(settings.telemetry.log_format, GATEWAY)
        timeout_ms = settings.integer("request.timeout.ms")
        observing = Observing.of(settings.telemetry, GRPC)  # the broker runs elsewhere, and is scraped there
        asyncio.run(run_alone(settings.gateway, bootstrap, timeout_ms, open_doors(settings.gateway), observing))
