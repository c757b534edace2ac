"""`headrace config …`: the settings of a node before it starts: what is in force, whether it is right, all keys."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.config_docs import config_reference
from headrace.cli.exit_codes import EXIT_CODES_HELP, USAGE, examples
from headrace.cli.failures import fail, failures_told
from headrace.cli.options import Json
from headrace.cli.output import note, plural, print_json, print_table

app = typer.Typer(
    name="config",
    help="The settings of a node: show what is in force, check a file, explain every key.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="HEADRACE_CONFIG", help="YAML file with settings.")
]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="As for start.")]


@app.command(epilog=examples("headrace config show --config headrace.yaml --all"))
def show(
    config: ConfigFile = None,
    set_: Set = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also keys at their default.")] = False,
    as_json: Json = False,
) -> None:
    """Show which settings a start would use, and who says so."""
    from headrace.model.configs import BROKER_CONFIGS
    from headrace.model.node_configs import NODE_CONFIGS

    loaded = load(config, set_)
    rows: list[dict[str, Any]] = []
    for key, definition in sorted({**NODE_CONFIGS, **BROKER_CONFIGS}.items()):
        heard = loaded.heard.get(key)
        if heard is not None:
            value = "(hidden)" if definition.sensitive else heard.text
            rows.append({"key": key, "value": value, "source": heard.said.where.rstrip(": ")})
        elif all_ and not definition.internal:
            rows.append({"key": key, "value": definition.default_text, "source": "default"})
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("key", "value", "said by"), [tuple(row.values()) for row in rows])
    else:
        note("nothing is set: a start would use the defaults; --all shows them")


@app.command(epilog=examples("headrace config check --config headrace.yaml"))
def check(config: ConfigFile = None, set_: Set = None) -> None:
    """Check settings as a start would, and name everything that is wrong."""
    loaded = load(config, set_)
    for remark in loaded.remarks():
        note(remark)
    note(f"fine: {plural(len(loaded.heard), 'setting')}")


@app.command(epilog=examples("headrace config docs > docs/reference/config.md"))
def docs() -> None:
    """Print the reference of all keys as Markdown."""
    print(config_reference(), end="")


def load(config: Path | None, pairs: list[str] | None) -> Any:
    import os

    from headrace.app.config_file import SettingsRefused, load_settings
    from headrace.cli.start import flags, parser

    with failures_told():
        arguments = parser().parse_args([word for pair in pairs or [] for word in ("--set", pair)])
        try:
            return load_settings(None if config is None else str(config), os.environ, flags(arguments))
        except SettingsRefused as refused:
            for problem in refused.problems:
                note(problem)
            count = plural(len(refused.problems), "problem")
            fail(count, "`headrace config docs` explains every key", USAGE)
