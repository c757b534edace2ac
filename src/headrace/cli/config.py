"""`headrace config …`: show and check the settings of a node, and print the reference of all keys."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.common.errors import fail, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, USAGE, examples
from headrace.cli.common.options import Json
from headrace.cli.common.output import note, plural, print_json, print_table
from headrace.config.definition import ConfigDef
from headrace.config.ignored_keys import IGNORED_KEYS
from headrace.config.keys.group import GROUP_CONFIGS
from headrace.config.keys.node import ALIASES, NODE_CONFIGS
from headrace.config.values import BROKER_CONFIGS, SYNONYM_UNIT_MS, TOPIC_CONFIGS

_INTRODUCTION = """\
# Configuration

<!-- Written by `headrace config docs`; edit the tables in src/headrace/config/keys instead. -->

A node reads its configuration from a YAML file (`headrace start --config FILE` or `HEADRACE_CONFIG`), from
environment variables and from flags. Flags override environment variables, which override the file, which overrides
the default.

```yaml
node_id: 1
listeners: PLAINTEXT://0.0.0.0:9092
advertised.listeners: PLAINTEXT://broker.example.org:9092
storage_path: /var/lib/headrace
default_partitions: 8
log:
  retention:
    hours: 72        # the same as log.retention.hours: 72
```

- **Names.** Where headrace and Kafka have different names for a key, both are accepted; the table of [alternative
  names](#alternative-names) lists them. A key that is set under both names with different values is rejected.
- **Environment.** `HEADRACE_` and the key in capitals, dots as underscores: `HEADRACE_NUM_PARTITIONS=8`.
- **Flags.** `headrace start --set num.partitions=8`, and `--listen`, `--data-dir`, `--memory` for the common ones.
- **Errors.** An unknown key is rejected with the most similar known one and the line of the file.
- `headrace config show` prints the effective values and their sources; `headrace config check` checks without
  starting.

Topic keys are set per topic (`headrace topics create … --config`, `headrace configs set … --topic`), or by any Kafka
admin client. A topic without a value uses the broker key named with it, then the default. Group keys are set per
consumer group (`headrace configs set … --group`) in the same way, also before the group exists. Broker keys marked
*live* can be changed while the broker runs (`headrace configs set … --broker ID`). **No effect yet** marks keys that
are read, checked and shown, but change nothing in this version; a broker that starts with one logs a warning.

Retention: as in Kafka, a topic keeps records for 7 days and without a size limit. `default_retention_seconds` and
`default_retention_bytes` change that for all topics of a node; 604800 and 1073741824 are sensible values.
"""

_GROUPS = """\
## Group keys

All of Kafka 4.3's keys for groups with the consumer protocol (`group.protocol=consumer`); members of classic groups
send their own settings. A value must be between the broker's `group.consumer.min.…` and `group.consumer.max.…`. If
these are changed later, the nearest allowed value is used. Kafka's keys that begin with `share.` and `streams.` are
rejected with the reason, because this version has no groups of these types.
"""


def config_reference() -> str:
    parts = [
        _INTRODUCTION,
        "## Alternative names\n",
        _alias_table(),
        "## Node keys\n\nheadrace's own; Kafka's admin clients do not list them.\n",
        _table(NODE_CONFIGS.values()),
        "## Broker keys\n\nKafka's keys, with Kafka's meaning.\n",
        _table(_public(BROKER_CONFIGS)),
        "## Topic keys\n\nAll of Kafka 4.3's, `flush.policy` and `archive.*`.\n",
        _table(_public(TOPIC_CONFIGS), fallback=True),
        _GROUPS,
        _table(GROUP_CONFIGS.values(), fallback=True),
    ]
    return "\n".join(parts)


def _public(table: Mapping[str, ConfigDef]) -> Iterable[ConfigDef]:
    return (config for config in table.values() if not config.internal)


def _alias_table() -> str:
    lines = ["| Name | Key | Remark |", "|---|---|---|"]
    for name, alias in sorted(ALIASES.items()):
        remark = ""
        if alias.unit != 1:
            remark = "in seconds"
        elif alias.prefix:
            remark = "host:port, with PLAINTEXT"
        lines.append(f"| `{name}` | `{alias.key}` | {remark} |")
    return "\n".join(lines) + "\n"


def _table(configs: Iterable[ConfigDef], *, fallback: bool = False) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for config in configs:
        meaning = config.doc.replace("|", "\\|")
        if config.check is not None:
            meaning += f" *{config.check.describe().replace('|', chr(92) + '|')}.*"
        if fallback and config.synonyms:
            meaning += f" Falls back to {', '.join(map(_fallback, config.synonyms))}."
        if config.name in IGNORED_KEYS:
            meaning += " **No effect yet.**"
        elif not fallback and config.dynamic:
            meaning += " *live*"
        lines.append(f"| `{config.name}` | {config.type.name.lower()} | {_default(config)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _fallback(synonym: str) -> str:
    unit_ms = SYNONYM_UNIT_MS.get(synonym)
    return f"`{synonym}`" if unit_ms is None else f"`{synonym}` (×{unit_ms:,})"


def _default(config: ConfigDef) -> str:
    text = config.default_text
    if text is None:
        return "unset"
    return f"`{text}`" if text else "empty"


app = typer.Typer(
    name="config",
    help="Settings of a node before it starts: show effective values, check a file, print the reference.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="HEADRACE_CONFIG", help="YAML file with settings.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any setting, as for `headrace start`.")
]


@app.command(epilog=examples("headrace config show --config headrace.yaml --all"))
def show(
    config: ConfigFile = None,
    set_: Set = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Include keys with their default.")] = False,
    as_json: Json = False,
) -> None:
    """Show the effective settings of a start, and their sources: file, environment or flag."""
    from headrace.config.keys.node import NODE_CONFIGS
    from headrace.config.values import BROKER_CONFIGS

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
        print_table(("key", "value", "source"), [tuple(row.values()) for row in rows])
    else:
        note("no settings; a start uses the defaults (--all prints them)")


@app.command(epilog=examples("headrace config check --config headrace.yaml"))
def check(config: ConfigFile = None, set_: Set = None) -> None:
    """Validate settings as a start does, and report all errors."""
    loaded = load(config, set_)
    for remark in loaded.remarks():
        note(remark)
    note(f"valid: {plural(len(loaded.heard), 'setting')}")


@app.command(epilog=examples("headrace config docs > docs/reference/config.md"))
def docs() -> None:
    """Print the reference of all keys as Markdown."""
    print(config_reference(), end="")


def load(config: Path | None, pairs: list[str] | None) -> Any:
    import os

    from headrace.cli.start import flags, parser
    from headrace.config.loader import SettingsError, load_settings

    with failures_told():
        arguments = parser().parse_args([word for pair in pairs or [] for word in ("--set", pair)])
        try:
            return load_settings(None if config is None else str(config), os.environ, flags(arguments))
        except SettingsError as refused:
            for problem in refused.problems:
                note(problem)
            count = plural(len(refused.problems), "problem")
            fail(count, "`headrace config docs` describes every key", USAGE)
