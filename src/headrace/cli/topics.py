"""`headrace topics …`: create, list, describe, alter, delete, add-partitions, delete-records."""

from typing import Annotated, Any

import typer

from headrace.cli.common.errors import ask_before_deleting, fail_kafka, fail_not_found, fail_usage, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout, parse_pairs
from headrace.cli.common.output import note, plural, print_json, print_table
from headrace.cli.common.time_arguments import parse_time_ms
from headrace.cli.configs import Entity, change, read_entries
from headrace.client import admin as cluster
from headrace.client.sync.configs import ConfigSource
from headrace.model.errors import ErrorCode

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


def alter(
    topic: Name,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a config; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Reset a config to its default; repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change configs of a topic. Other keys do not change."""
    wanted = parse_pairs(set_ or [], "--set retention.ms=3600000")
    if not wanted and not unset:
        fail_usage("--set or --unset is required", f"headrace topics alter {topic} --set KEY=VALUE")
    change(Entity("topic", topic), wanted, unset or [], bootstrap, timeout)
    note(f"changed: {topic}")


def add_partitions(
    topic: Name,
    total: Annotated[int | None, typer.Option("--total", min=1, help="The new number of partitions.")] = None,
    more: Annotated[int | None, typer.Option("--more", min=1, help="The number of partitions to add.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add partitions to a topic. Afterwards, keys map to other partitions."""
    if (total is None) == (more is None):
        fail_usage("specify either --total or --more", f"headrace topics add-partitions {topic} --total 12")
    with failures_told(bootstrap):
        from confluent_kafka.cimpl import NewPartitions

        admin = cluster.connect(bootstrap, timeout)
        if total is None:
            total = len(_described(admin, topic, timeout).partitions) + (more or 0)
        futures = admin.create_partitions([NewPartitions(topic, total)], request_timeout=timeout)
        _, refused = cluster.outcomes(futures)
        for error in refused.values():
            fail_kafka(error.code(), f"{topic}: {error.str()}", bootstrap)
        note(f"{topic} now has {plural(total, 'partition')}")


def delete_records(
    topic: Name,
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET|end|TIME", help="Delete records before this position.")
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable. Default: all."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the records of a topic before an offset or a time, or all of them (`--before end`)."""
    ask_before_deleting(f"Delete the records of {topic} before {before}?", yes=yes)
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        there = [one.id for one in _described(admin, topic, timeout).partitions]
        chosen = partition or there
        for number in chosen:
            if number not in there:
                fail_not_found(f"{topic} has no partition {number}", f"partitions: 0 to {max(there)}")
        offsets = _offsets_before(admin, topic, chosen, before, timeout)
        _delete_before(admin, topic, offsets, timeout, bootstrap)


def _described(admin: Any, topic: str, timeout_s: float) -> Any:
    found, refused = cluster.describe_topics(admin, [topic], timeout_s)
    if refused:
        fail_not_found(f"topic {topic} does not exist", "`headrace topics list` lists the topics")
    return found[topic]


def _offsets_before(admin: Any, topic: str, partitions: list[int], before: str, timeout_s: float) -> dict[int, int]:
    if before.isdigit() and before.isascii():
        return dict.fromkeys(partitions, int(before))
    if before == "end":
        return dict.fromkeys(partitions, -1)  # DeleteRecords: up to the high watermark
    when_ms = parse_time_ms(before)
    found = cluster.list_offsets(admin, topic, partitions, when_ms, timeout_s)
    return {partition: found.get(partition, -1) for partition in partitions}


def _delete_before(admin: Any, topic: str, offsets: dict[int, int], timeout_s: float, bootstrap: str) -> None:
    from confluent_kafka import TopicPartition

    asked = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    done, refused = cluster.outcomes(admin.delete_records(asked, request_timeout=timeout_s))
    for place, result in sorted(done.items(), key=lambda item: item[0].partition):
        note(f"{topic}-{place.partition} now starts at offset {result.low_watermark}")
    for place, error in refused.items():
        fail_kafka(error.code(), f"{topic}-{place.partition}: {error.str()}", bootstrap)


app = typer.Typer(
    name="topics",
    help="Create, describe, change and delete topics.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)
BROKERS_CHOICE = -1  # CreateTopics: the broker's default
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more topics.")]


@app.command(
    epilog=examples("headrace topics create orders --partitions 6 --config retention.ms=86400000"),
)
def create(
    topics: Names,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="Default: the broker's default.replication.factor."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic config; repeatable.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="No error if the topic exists.")] = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Validate without creating.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create topics. Partitions, replicas and configs default to the broker's settings."""
    configs = parse_pairs(config or [], "--config cleanup.policy=compact")
    with failures_told(bootstrap):
        from confluent_kafka.cimpl import NewTopic

        admin = cluster.connect(bootstrap, timeout)
        counts = (partitions or BROKERS_CHOICE, replication_factor or BROKERS_CHOICE)
        new = [NewTopic(name, *counts, config=configs) for name in topics]
        futures = admin.create_topics(new, request_timeout=timeout, validate_only=validate_only)
        done, refused = cluster.outcomes(futures)
        if if_not_exists:
            refused = {k: v for k, v in refused.items() if v.code() != ErrorCode.TOPIC_ALREADY_EXISTS}
        for name in done:
            note(f"{'valid' if validate_only else 'created'}: {name}")
        _fail_if_refused(refused, bootstrap)


@app.command("list", epilog=examples("headrace topics list --json | jq -r '.[].topic'"))
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics (__…).")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List topics with the numbers of partitions and replicas."""
    with failures_told(bootstrap):
        rows = cluster.topic_names(cluster.connect(bootstrap, timeout), timeout, internal=internal)
    if as_json:
        print_json([{"topic": name, "partitions": p, "replication_factor": r} for name, p, r in rows])
    elif rows:
        print_table(("topic", "partitions", "replicas"), rows, numbers=2)
    else:
        note("no topics; create one with `headrace topics create NAME`")


@app.command(epilog=examples("headrace topics describe orders"))
def describe(
    topics: Names,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show partitions with leader, replicas, ISR and offsets, and configs that differ from their default."""
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        found, refused = cluster.describe_topics(admin, topics, timeout)
        views = []
        for name in (name for name in topics if name in found):
            partitions = cluster.partition_views(admin, name, found[name], timeout)
            configs = _set_configs(name, bootstrap, timeout)
            views.append((name, str(found[name].topic_id), partitions, configs))
        if as_json:
            print_json([_as_json(*view) for view in views])
        else:
            for view in views:
                _show(*view)
        _fail_if_refused(refused, bootstrap)


def _set_configs(topic: str, bootstrap: str, timeout_s: float) -> dict[str, str]:
    entries = read_entries(Entity("topic", topic), bootstrap, timeout_s)
    return {entry.name: entry.value or "" for entry in entries if entry.source is ConfigSource.TOPIC}


def _as_json(
    name: str, topic_id: str, partitions: list[cluster.PartitionView], configs: dict[str, str]
) -> dict[str, Any]:
    rows = [partition._asdict() for partition in partitions]
    return {"topic": name, "topic_id": topic_id, "partitions": rows, "configs": configs}


def _show(name: str, topic_id: str, partitions: list[cluster.PartitionView], configs: dict[str, str]) -> None:
    records = sum((p.end_offset or 0) - (p.start_offset or 0) for p in partitions)
    title = f"{name}  ({plural(len(partitions), 'partition')}, {plural(records, 'offset')}, id {topic_id})"
    rows = (
        (p.partition, p.leader, _numbers(p.replicas), _numbers(p.isr), p.start_offset, p.end_offset) for p in partitions
    )
    print_table(("partition", "leader", "replicas", "isr", "start offset", "end offset"), rows, title=title, numbers=2)
    for key, value in configs.items():
        print(f"  {key} = {value}")
    if configs:
        print()


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@app.command(epilog=examples("headrace topics delete orders payments --yes"))
def delete(
    topics: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete topics and all their records."""
    ask_before_deleting(f"Delete {', '.join(topics)} and all records?", yes=yes)
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        done, refused = cluster.outcomes(admin.delete_topics(topics, request_timeout=timeout))
        for name in done:
            note(f"deleted: {name}")
        _fail_if_refused(refused, bootstrap)


app.command("alter", epilog=examples("headrace topics alter orders --set retention.ms=3600000"))(alter)
app.command("add-partitions", epilog=examples("headrace topics add-partitions orders --total 12"))(add_partitions)
app.command("delete-records", epilog=examples("headrace topics delete-records orders --before end --yes"))(
    delete_records
)


def _fail_if_refused(refused: dict[str, Any], bootstrap: str) -> None:
    """Prints all errors; the last one determines the exit code."""
    for position, (name, error) in enumerate(refused.items()):
        if position < len(refused) - 1:
            note(f"error: {name}: {error.str()}")
    for name, error in list(refused.items())[-1:]:
        if error.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            fail_not_found(f"topic {name} does not exist", "`headrace topics list` lists the topics")
        fail_kafka(error.code(), f"{name}: {error.str()}", bootstrap)
