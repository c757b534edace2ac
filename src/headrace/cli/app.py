"""Puts the commands together. Decides their order in --help, and that no traceback reaches a user."""

import os
import sys
from collections.abc import Sequence

import typer

from headrace.cli import bench, config, configs, consume, doctor, log, produce, topics
from headrace.cli.exit_codes import EXIT_CODES_HELP, FAILURE
from headrace.cli.start import start as start_node

DEBUG_VARIABLE = "HEADRACE_DEBUG"

app = typer.Typer(
    name="headrace",
    help="A Kafka-compatible message queue: run a broker, and look after its topics.",
    epilog=f"First steps: headrace start · headrace topics create orders · headrace produce orders hello · "
    f"headrace consume orders.  {EXIT_CODES_HELP}",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def start(context: typer.Context) -> None:
    """Start a broker in the foreground (`headrace start --help` tells more)."""
    raise typer.Exit(start_node(context.args))


app.add_typer(topics.app)
app.command(epilog=produce.EPILOG)(produce.produce)
app.command(epilog=consume.EPILOG)(consume.consume)
app.add_typer(configs.app)
app.add_typer(log.app)
app.add_typer(config.app)
app.command(epilog=bench.EPILOG)(bench.bench)
app.command(epilog=doctor.EPILOG)(doctor.doctor)


@app.command()
def version() -> None:
    """Print the version."""
    from headrace import __version__

    print(f"headrace {__version__}")


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line. Anything unforeseen becomes one line, not a traceback."""
    try:
        app(args=list(arguments), prog_name="headrace")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILURE
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        print(f"error: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        print(f"  try: {DEBUG_VARIABLE}=1 headrace … shows where it comes from", file=sys.stderr)
        return FAILURE
    return 0
