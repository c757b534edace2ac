"""`headrace gateway`: REST alone, in front of a broker that runs elsewhere."""

import os
from pathlib import Path
from typing import Annotated

import typer

from headrace.app.config_file import SettingsRefused, load_settings
from headrace.cli.exit_codes import examples
from headrace.cli.failures import fail, fail_usage, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap
from headrace.cli.start import http_flags, set_flags
from headrace.client.factory import bootstrap_addresses

EPILOG = examples(
    "headrace gateway --bootstrap broker-1:9092,broker-2:9092",
    "headrace gateway --http 0.0.0.0:8080 --set acks=leader",
)


def gateway(
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Where REST is served (default 127.0.0.1:8080).")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with settings.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any setting.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve REST in front of any broker, in the foreground.

    It may be started before its broker, and outlives the broker's restarts.
    """
    with failures_told(bootstrap):
        bootstrap_addresses(bootstrap)
        try:
            flags = [*set_flags(set_ or []), *(http_flags(http) if http is not None else [])]
            settings = load_settings(None if config is None else str(config), os.environ, flags).settings
        except SettingsRefused as refused:
            fail_usage("; ".join(refused.problems))
        from headrace.app.gateway import listen_http, run

        code = run(settings.gateway, bootstrap, settings.integer("request.timeout.ms"), listen_http(settings.gateway))
    if code:
        fail("the gateway could not start; its log says why")
