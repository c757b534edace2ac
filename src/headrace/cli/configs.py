"""`headrace configs …`: describe and alter the configs of topics, groups, brokers and loggers of a running cluster."""

from typing import Annotated, NamedTuple

import typer

from headrace.cli.common.errors import fail_kafka, fail_not_found, fail_usage, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout, parse_pairs
from headrace.cli.common.output import note, plural, print_json, print_table
from headrace.client.librdkafka import REACH_TIMEOUT_S, bootstrap_addresses, check_reachable, make_admin
from headrace.client.sync.configs import ConfigError, ConfigSource, Entry, ResourceType
from headrace.client.sync.configs import alter as alter_configs
from headrace.client.sync.configs import describe as describe_configs
from headrace.client.sync.transport import Connection
from headrace.config.definition import nearest

app = typer.Typer(
    name="configs",
    help="Show and change the configuration of a running cluster: topics, groups, brokers, loggers.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="NAME", help="Configs of this topic.")]
Group = Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="Configs of this consumer group.")]
Broker = Annotated[str | None, typer.Option("--broker", metavar="ID", help="Configs of this broker.")]
AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="The cluster-wide default of all brokers.")]
Logger = Annotated[str | None, typer.Option("--loggers", metavar="ID", help="Log levels of this broker.")]
Pairs = Annotated[list[str], typer.Argument(metavar="KEY=VALUE")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY")]

_RESOURCE = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "broker": ResourceType.BROKER,
    "all brokers": ResourceType.BROKER,
    "loggers": ResourceType.BROKER_LOGGER,
}


class Entity(NamedTuple):
    """A config resource."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@app.command("list", epilog=examples("headrace configs list --topic orders --all"))
def list_(
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    loggers: Logger = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Include keys with their default.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Include descriptions.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List configs that differ from their default, or with --all every key."""
    entity = _entity(topic=topic, group=group, broker=broker, all_brokers=all_brokers, loggers=loggers)
    entries = read_entries(entity, bootstrap, timeout)
    shown = [entry for entry in entries if all_ or loggers is not None or _is_set(entry)]
    if as_json:
        print_json([_as_json(entry) for entry in shown])
    elif shown:
        columns = ("key", "value", "source", *(("description",) if docs else ()))
        print_table(columns, [_row(entry, docs=docs) for entry in shown])
    else:
        note(f"{entity}: all keys have their default; --all prints them")


@app.command(epilog=examples("headrace configs get retention.ms --topic orders"))
def get(
    keys: Keys,
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    loggers: Logger = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the effective value of a key, or key=value lines of several keys."""
    entity = _entity(topic=topic, group=group, broker=broker, all_brokers=all_brokers, loggers=loggers)
    entries = {entry.name: entry for entry in read_entries(entity, bootstrap, timeout)}
    for key in keys:
        if key not in entries:
            close = nearest(key, entries)
            fail_not_found(f"{entity} has no key {key}", f"did you mean {close}?" if close else None)
    if as_json:
        print_json([_as_json(entries[key]) for key in keys])
    elif len(keys) == 1:
        print(entries[keys[0]].value or "")
    else:
        for key in keys:
            print(f"{key}={entries[key].value or ''}")


@app.command(
    "set",
    epilog=examples(
        "headrace configs set retention.ms=3600000 --topic orders",
        "headrace configs set consumer.session.timeout.ms=60000 --group billing",
    ),
)
def set_(
    pairs: Pairs,
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    loggers: Logger = None,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Validate without a change.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set configs. Other keys do not change."""
    entity = _entity(topic=topic, group=group, broker=broker, all_brokers=all_brokers, loggers=loggers)
    wanted = parse_pairs(pairs, "headrace configs set retention.ms=3600000 --topic orders")
    change(entity, wanted, [], bootstrap, timeout, validate_only=validate_only)
    note(f"{'valid' if validate_only else 'set'}: {plural(len(wanted), 'key')} of {entity}")


@app.command(epilog=examples("headrace configs unset retention.ms --topic orders"))
def unset(
    keys: Keys,
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    loggers: Logger = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Reset configs to their default."""
    entity = _entity(topic=topic, group=group, broker=broker, all_brokers=all_brokers, loggers=loggers)
    change(entity, {}, keys, bootstrap, timeout)
    note(f"unset: {plural(len(keys), 'key')} of {entity}")


def change(
    entity: Entity,
    wanted: dict[str, str],
    unwanted: list[str],
    bootstrap: str,
    timeout_s: float,
    *,
    validate_only: bool = False,
) -> None:
    """Sets and unsets keys; exits with the broker's error if it rejects the change."""
    with failures_told(bootstrap), _connection(entity, bootstrap, timeout_s) as connection:
        refusal = alter_configs(
            connection, _RESOURCE[entity.kind], entity.name, wanted, unwanted, validate_only=validate_only
        )
        if refusal is not None:
            fail_kafka(refusal.code, f"{entity}: {refusal.message}", bootstrap)


def _entity(
    *, topic: str | None, group: str | None, broker: str | None, all_brokers: bool, loggers: str | None
) -> Entity:
    named = {
        "topic": topic,
        "group": group,
        "broker": broker,
        "all brokers": "" if all_brokers else None,
        "loggers": loggers,
    }
    chosen = [Entity(kind, name) for kind, name in named.items() if name is not None]
    if len(chosen) != 1:
        fail_usage(
            "no resource specified" if not chosen else "more than one resource specified",
            "specify one of --topic NAME, --group NAME, --broker ID, --all-brokers, --loggers ID",
        )
    return chosen[0]


def read_entries(entity: Entity, bootstrap: str, timeout_s: float) -> list[Entry]:
    """Returns every key of the entity with its effective value, sorted by name."""
    with failures_told(bootstrap), _connection(entity, bootstrap, timeout_s) as connection:
        answer = describe_configs(connection, _RESOURCE[entity.kind], entity.name)
        if isinstance(answer, ConfigError):
            fail_kafka(answer.code, f"{entity}: {answer.message}", bootstrap)
        return sorted(answer)


def _connection(entity: Entity, bootstrap: str, timeout_s: float) -> Connection:
    """Connects to the broker that serves the request: the named broker for broker resources, else any broker."""
    check_reachable(bootstrap, min(timeout_s, REACH_TIMEOUT_S))
    addresses = bootstrap_addresses(bootstrap)
    if entity.kind in ("broker", "loggers"):
        brokers = make_admin(bootstrap).list_topics(timeout=timeout_s).brokers
        if not entity.name.isdigit() or int(entity.name) not in brokers:
            fail_not_found(f"broker {entity.name} does not exist", f"brokers: {', '.join(map(str, brokers))}")
        owner = brokers[int(entity.name)]
        addresses = [(str(owner.host), int(owner.port))]
    for address in addresses[:-1]:
        try:
            return Connection(*address, timeout_s)
        except ConnectionError:
            continue
    return Connection(*addresses[-1], timeout_s)


def _is_set(entry: Entry) -> bool:
    return entry.source is not ConfigSource.DEFAULT


def _row(entry: Entry, *, docs: bool) -> tuple[str, ...]:
    value = "" if entry.value is None else entry.value
    return (entry.name, value, entry.source.name.lower(), *((entry.doc,) if docs else ()))


def _as_json(entry: Entry) -> dict[str, object]:
    return entry._asdict() | {"source": entry.source.name.lower()}
