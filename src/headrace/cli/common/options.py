"""Options that several commands share."""

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "localhost:9092"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Bootstrap addresses, separated by commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Maximum time to wait for the broker.")
]
DEFAULT_TIMEOUT_S = 15.0


def parse_pairs(pairs: list[str], example: str) -> dict[str, str]:
    """Parses KEY=VALUE arguments; raises BadParameter with `example` for any other."""
    made: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE; e.g. {example}")
        made[key] = value
    return made
