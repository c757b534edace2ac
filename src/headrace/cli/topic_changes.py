"""`headrace topics alter | add-partitions | delete-records`: changes to a topic that exists."""

from typing import Annotated, Any

import typer

from headrace.cli.configs import Entity, change
from headrace.cli.failures import ask_before_deleting, fail_kafka, fail_not_found, fail_usage, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout, parse_pairs
from headrace.cli.output import note, plural
from headrace.cli.times import parse_time_ms
from headrace.client import admin as cluster

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


def alter(
    topic: Name,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a config; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", "-u", metavar="KEY", help="Back to the default; repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change a topic's configs. What is not named stays as it is."""
    wanted = parse_pairs(set_ or [], "--set retention.ms=3600000")
    if not wanted and not unset:
        fail_usage("nothing to change", f"headrace topics alter {topic} --set KEY=VALUE or --unset KEY")
    change(Entity("topic", topic), wanted, unset or [], bootstrap, timeout)
    note(f"changed: {topic}")


def add_partitions(
    topic: Name,
    total: Annotated[int | None, typer.Option("--total", min=1, help="How many it shall have afterwards.")] = None,
    more: Annotated[int | None, typer.Option("--more", min=1, help="How many to add.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Give a topic more partitions. Keys will map to other partitions than before."""
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
        note(f"{topic} has {plural(total, 'partition')} now")


def delete_records(
    topic: Name,
    before: Annotated[str, typer.Option("--before", metavar="OFFSET|end|TIME", help="Delete what lies before this.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these; repeatable. Default: all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the oldest records of a topic, up to an offset, a time, or all there are."""
    ask_before_deleting(f"Delete the records of {topic} before {before}?", yes=yes)
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        there = [one.id for one in _described(admin, topic, timeout).partitions]
        chosen = partition or there
        for number in chosen:
            if number not in there:
                fail_not_found(f"{topic} has no partition {number}", f"it has 0 to {max(there)}")
        offsets = _offsets_before(admin, topic, chosen, before, timeout)
        _delete_before(admin, topic, offsets, timeout, bootstrap)


def _described(admin: Any, topic: str, timeout_s: float) -> Any:
    found, refused = cluster.describe_topics(admin, [topic], timeout_s)
    if refused:
        fail_not_found(f"there is no topic {topic}", "`headrace topics list` shows what there is")
    return found[topic]


def _offsets_before(admin: Any, topic: str, partitions: list[int], before: str, timeout_s: float) -> dict[int, int]:
    if before.isdigit() and before.isascii():
        return dict.fromkeys(partitions, int(before))
    if before == "end":
        return dict.fromkeys(partitions, -1)  # the broker's word for "its high watermark"
    when_ms = parse_time_ms(before)
    found = cluster.list_offsets(admin, topic, partitions, when_ms, timeout_s)
    return {partition: found.get(partition, -1) for partition in partitions}


def _delete_before(admin: Any, topic: str, offsets: dict[int, int], timeout_s: float, bootstrap: str) -> None:
    from confluent_kafka import TopicPartition

    asked = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    done, refused = cluster.outcomes(admin.delete_records(asked, request_timeout=timeout_s))
    for place, result in sorted(done.items(), key=lambda item: item[0].partition):
        note(f"{topic}-{place.partition} begins at offset {result.low_watermark} now")
    for place, error in refused.items():
        fail_kafka(error.code(), f"{topic}-{place.partition}: {error.str()}", bootstrap)
