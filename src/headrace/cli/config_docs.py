"""Writes docs/reference/config.md from the tables, so that the page cannot say anything else than the code."""

from collections.abc import Iterable, Mapping

from headrace.model.config_def import ConfigDef
from headrace.model.configs import BROKER_CONFIGS, SYNONYM_UNIT_MS, TOPIC_CONFIGS
from headrace.model.group_configs import GROUP_CONFIGS
from headrace.model.no_effect import NO_EFFECT_YET
from headrace.model.node_configs import ALIASES, NODE_CONFIGS

_INTRODUCTION = """\
# Settings

<!-- Written by `headrace config docs`; edit the tables in src/headrace/model instead. -->

A node is told its settings by a YAML file (`headrace start --config FILE` or `HEADRACE_CONFIG`), by the environment
and by flags. Flags win over the environment, the environment over the file, the file over the default.

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

- **By either name.** Where headrace and Kafka have different names for the same thing, both work; the table of
  [second names](#second-names) lists them. The same thing said twice with different values is refused.
- **Environment.** `HEADRACE_` and the key in capitals, dots as underscores: `HEADRACE_NUM_PARTITIONS=8`.
- **Flags.** `headrace start --set num.partitions=8`, and `--listen`, `--data-dir`, `--memory` for the common ones.
- **Mistakes.** An unknown key is refused with the nearest right one, with the line of the file it stands on.
- `headrace config show` tells what is in force and who said so; `headrace config check` checks without starting.

Topic keys are set per topic (`headrace topics create … --config`, `headrace configs set … --topic`), or by any
Kafka admin client. A topic that does not set one falls back to the broker key named with it, then to the default.
Group keys are set per consumer group (`headrace configs set … --group`), likewise; a group need not be there yet.
Broker keys marked *live* can be changed while the broker runs (`headrace configs set … --broker ID`).
**No effect yet** marks keys that are read, checked and shown, but change nothing in this version: mostly those of
groups, transactions and replication. A start that sets one says so.

Retention: as in Kafka, a topic keeps data for 7 days and without a limit of size. `default_retention_seconds` and
`default_retention_bytes` change that for all topics of a node; 604800 and 1073741824 are sensible values.
"""

_GROUPS = """\
## Group keys

All of Kafka 4.3's for groups of the newer protocol (`group.protocol=consumer`); members of classic groups bring their
own settings. A value lies between the broker's `group.consumer.min.…` and `group.consumer.max.…`; where these are
changed afterwards, the nearest value that they allow counts. Kafka's keys that begin with `share.` and `streams.` are
refused, with the reason: there are no groups of these kinds here that would look at them.
"""


def config_reference() -> str:
    parts = [
        _INTRODUCTION,
        "## Second names\n",
        _alias_table(),
        "## Node keys\n\nheadrace's own; not seen by Kafka's admin clients.\n",
        _table(NODE_CONFIGS.values()),
        "## Broker keys\n\nKafka's names, with Kafka's meaning.\n",
        _table(_public(BROKER_CONFIGS)),
        "## Topic keys\n\nAll of Kafka 4.3's, and `flush.policy`.\n",
        _table(_public(TOPIC_CONFIGS), fallback=True),
        _GROUPS,
        _table(GROUP_CONFIGS.values(), fallback=True),
    ]
    return "\n".join(parts)


def _public(table: Mapping[str, ConfigDef]) -> Iterable[ConfigDef]:
    return (config for config in table.values() if not config.internal)


def _alias_table() -> str:
    lines = ["| written as | is | |", "|---|---|---|"]
    for name, alias in sorted(ALIASES.items()):
        remark = ""
        if alias.unit != 1:
            remark = "in seconds"
        elif alias.prefix:
            remark = "host:port, spoken as PLAINTEXT"
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
        if config.name in NO_EFFECT_YET:
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
