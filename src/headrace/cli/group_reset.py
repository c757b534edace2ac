"""`headrace groups reset`: move the offsets of a group that nobody uses right now."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.failures import fail, fail_not_found, fail_usage, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout
from headrace.cli.output import note, print_json, print_table
from headrace.cli.times import parse_time_ms
from headrace.client import admin as cluster
from headrace.client import groups as group_admin
from headrace.client.group_reset import GroupHasMembers, Place, Wish, store, targets

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="earliest, latest, an offset, a time, or 2h for two hours ago."),
    ] = None,
    by: Annotated[
        int | None, typer.Option("--by", metavar="RECORDS", help="Forward by so many records; backward if negative.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:PARTITION,…]", help="Default: all that it has committed."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move a group's offsets: to the start, the end, an offset, a time, or by a number of records.

    The group must be empty: its members would commit their own offsets over these.
    """
    if (to is None) == (by is None):
        fail_usage("specify either --to or --by", f"headrace groups reset {group} --to earliest --dry-run")
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        before = group_admin.committed_offsets(admin, group, timeout)
        places = _places(admin, topic or [], before, timeout)
        if not places:
            fail_not_found(f"{group} has committed nothing", "name what to set with --topic TOPIC")
        after = targets(admin, places, before, _wish(to, by), timeout)
        if not dry_run:
            try:
                store(admin, group, after, timeout)
            except GroupHasMembers as error:
                fail(str(error), "stop its consumers first: they would commit their own offsets over these")
    rows = [(place[0], place[1], before.get(place), offset) for place, offset in sorted(after.items())]
    if as_json:
        print_json([dict(zip(("topic", "partition", "before", "after"), row, strict=True)) for row in rows])
    else:
        print_table(("topic", "partition", "before", "after"), rows, numbers=2)
        note("nothing was changed (--dry-run)" if dry_run else f"offsets of {group} are set")


def _places(admin: "AdminClient", wanted: list[str], before: dict[Place, int], timeout_s: float) -> list[Place]:
    if not wanted:
        return sorted(before)
    places: list[Place] = []
    topics = admin.list_topics(timeout=timeout_s).topics
    for word in wanted:
        name, _, numbers = word.partition(":")
        known = topics.get(name)
        if known is None:
            fail_not_found(f"there is no topic {name}", "`headrace topics list` shows what there is")
        try:
            chosen = [int(number) for number in numbers.split(",")] if numbers else sorted(known.partitions)
        except ValueError:
            fail_usage(f"{numbers!r} are not partitions", f"--topic {name}:0,1")
        missing = [number for number in chosen if number not in known.partitions]
        if missing:
            fail_not_found(f"{name} has no partition {missing[0]}")
        places += [(name, number) for number in chosen]
    return sorted(set(places))


def _wish(to: str | None, by: int | None) -> Wish:
    if by is not None:
        return Wish(by=by)
    if to in ("earliest", "latest"):
        return Wish(earliest=to == "earliest", latest=to == "latest")
    if to is not None and _is_offset(to):
        return Wish(offset=int(to))
    return Wish(time_ms=parse_time_ms(to or "", int(time.time() * 1000)))


def _is_offset(text: str) -> bool:
    """A plain number is an offset, unless it is as large as milliseconds since 1970 are."""
    return text.isascii() and text.isdigit() and len(text) < len("1700000000000")
