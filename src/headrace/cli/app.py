"""Registers all commands in the order of `headrace --help`, and reports unexpected exceptions without a traceback."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import archive, bench, config, configs, consume, gateway, groups, produce, topics, transactions
from headrace.cli.cluster import commands as cluster
from headrace.cli.common.exit_codes import FAILURE, examples
from headrace.cli.doctor import commands as doctor
from headrace.cli.log import commands as log
from headrace.cli.pipeline import commands as pipeline
from headrace.cli.sql import commands as sql
from headrace.cli.start import start as start_node

DEBUG_VARIABLE = "HEADRACE_DEBUG"

app = typer.Typer(
    name="headrace",
    help="A Kafka-compatible message broker: run brokers, produce and consume records, administer topics and groups.",
    epilog=examples(
        "headrace start",
        "headrace topics create orders",
        "headrace produce orders hello --key 42",
        "headrace consume orders --follow",
    ),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog=examples("headrace start --memory", "headrace start --help   (all options)"))
def start(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with settings.")] = None,
    listen: Annotated[list[str] | None, typer.Option("--listen", "-l", metavar="HOST:PORT")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", "-d", help="Directory for partitions.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Store all records in memory only.")] = False,
    http: Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="Address for REST.")] = None,
    port: Annotated[str | None, typer.Option("--port", metavar="PORT", help="Only the port of --http.")] = None,
    grpc: Annotated[str | None, typer.Option("--grpc", metavar="HOST:PORT", help="Address for gRPC.")] = None,
    metrics: Annotated[str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Address for /metrics.")] = None,
    no_gateway: Annotated[bool, typer.Option("--no-gateway", help="Serve the Kafka protocol only.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE")] = None,
) -> None:
    """Start a broker with a REST and a gRPC process in the foreground."""
    # Declared for the list of commands and for shell completion. `main` runs `start` without typer.
    words = [word for address in listen or [] for word in ("--listen", address)]
    words += [word for pair in set_ or [] for word in ("--set", pair)]
    words += ["--config", str(config)] if config is not None else []
    words += ["--data-dir", str(data_dir)] if data_dir is not None else []
    words += ["--http", http] if http is not None else []
    words += ["--port", port] if port is not None else []
    words += ["--grpc", grpc] if grpc is not None else []
    words += ["--metrics", metrics] if metrics is not None else []
    words += ["--no-gateway"] if no_gateway else []
    raise typer.Exit(start_node([*words, *(["--memory"] if memory else [])]))


app.command(epilog=gateway.EPILOG)(gateway.gateway)
app.add_typer(cluster.app)
app.add_typer(topics.app)
app.command(epilog=produce.EPILOG)(produce.produce)
app.command(epilog=consume.EPILOG)(consume.consume)
app.add_typer(groups.app)
app.add_typer(transactions.app)
app.add_typer(pipeline.app)
app.add_typer(archive.app)
app.command(epilog=sql.EPILOG)(sql.sql)
app.add_typer(configs.app)
app.add_typer(log.app)
app.add_typer(config.app)
app.command(epilog=bench.EPILOG)(bench.bench)
app.command(epilog=doctor.EPILOG)(doctor.doctor)


@app.command(epilog=examples("headrace version"))
def version() -> None:
    """Print the version."""
    from headrace import __version__

    print(f"headrace {__version__}")


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code. An unexpected exception is printed as one line."""
    try:
        app(args=list(arguments), prog_name="headrace")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILURE
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        print(f"error: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        print(f"  try: {DEBUG_VARIABLE}=1 headrace … prints the traceback", file=sys.stderr)
        return FAILURE
    return 0
