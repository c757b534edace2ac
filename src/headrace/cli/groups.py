"""`headrace groups …`: list, describe, offsets, reset, delete, rebalances."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.app.rebalance_history import read_history
from headrace.cli.common.errors import ask_before_deleting, fail, fail_kafka, fail_not_found, fail_usage, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout
from headrace.cli.common.output import note, plural, print_json, print_table
from headrace.cli.common.time_arguments import parse_time_ms, show_time
from headrace.client import admin as cluster
from headrace.client import group_admin
from headrace.client.group_admin import GroupNotEmptyError, OffsetReset, PartitionKey, store, targets
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="earliest, latest, an offset, a time, or 2h for 2 hours ago."),
    ] = None,
    by: Annotated[
        int | None, typer.Option("--by", metavar="RECORDS", help="Shift by this many records; negative: backward.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION,…]",
            help="Only these; repeatable. Default: all with committed offsets.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes only.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Reset a group's offsets: to the start, the end, an offset or a time, or by a number of records.

    The group must have no members: members would overwrite these offsets with their next commit.
    """
    if (to is None) == (by is None):
        fail_usage("specify either --to or --by", f"headrace groups reset {group} --to earliest --dry-run")
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        before = group_admin.committed_offsets(admin, group, timeout)
        places = _places(admin, topic or [], before, timeout)
        if not places:
            fail_not_found(f"group {group} has no committed offsets", "name the topics with --topic TOPIC")
        after = targets(admin, places, before, _wish(to, by), timeout)
        if not dry_run:
            try:
                store(admin, group, after, timeout)
            except GroupNotEmptyError as error:
                fail(str(error), "stop its consumers first: their commits would overwrite these offsets")
    rows = [(place[0], place[1], before.get(place), offset) for place, offset in sorted(after.items())]
    if as_json:
        print_json([dict(zip(("topic", "partition", "before", "after"), row, strict=True)) for row in rows])
    else:
        print_table(("topic", "partition", "before", "after"), rows, numbers=2)
        note("no change (--dry-run)" if dry_run else f"offsets of {group} reset")


def _places(
    admin: "AdminClient", wanted: list[str], before: dict[PartitionKey, int], timeout_s: float
) -> list[PartitionKey]:
    if not wanted:
        return sorted(before)
    places: list[PartitionKey] = []
    topics = admin.list_topics(timeout=timeout_s).topics
    for word in wanted:
        name, _, numbers = word.partition(":")
        known = topics.get(name)
        if known is None:
            fail_not_found(f"topic {name} does not exist", "`headrace topics list` lists the topics")
        try:
            chosen = [int(number) for number in numbers.split(",")] if numbers else sorted(known.partitions)
        except ValueError:
            fail_usage(f"{numbers!r} is not a list of partitions", f"--topic {name}:0,1")
        missing = [number for number in chosen if number not in known.partitions]
        if missing:
            fail_not_found(f"{name} has no partition {missing[0]}")
        places += [(name, number) for number in chosen]
    return sorted(set(places))


def _wish(to: str | None, by: int | None) -> OffsetReset:
    if by is not None:
        return OffsetReset(by=by)
    if to in ("earliest", "latest"):
        return OffsetReset(earliest=to == "earliest", latest=to == "latest")
    if to is not None and _is_offset(to):
        return OffsetReset(offset=int(to))
    return OffsetReset(time_ms=parse_time_ms(to or "", int(time.time() * 1000)))


def _is_offset(text: str) -> bool:
    """Whether a number is an offset; numbers with 13 digits or more are milliseconds since 1970."""
    return text.isascii() and text.isdigit() and len(text) < len("1700000000000")


app = typer.Typer(
    name="groups",
    help="Describe consumer groups: members, lag, rebalances; reset or delete their offsets.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)
Name = Annotated[str, typer.Argument(metavar="GROUP")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="One or more groups.")]


@app.command("list", epilog=examples("headrace groups list --state Empty"))
def list_(
    state: Annotated[str | None, typer.Option("--state", help="Only groups in this state, e.g. Stable.")] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List groups with their protocol and state."""
    with failures_told(bootstrap):
        found = group_admin.list_groups(cluster.connect(bootstrap, timeout), timeout)
    rows = [row for row in found if state is None or row.state.lower() == state.lower()]
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(("group", "type", "state"), rows)
    else:
        note("no group is in this state" if found else "no groups; a consumer with a group.id creates one")


@app.command(epilog=examples("headrace groups describe billing"))
def describe(
    groups: Names,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the state, the members with their partitions, and the lag in records."""
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        for name in groups:
            _must_exist(admin, name, timeout)
        found, refused = group_admin.describe_groups(admin, groups, timeout)
        views = []
        for name in (name for name in groups if name in found):
            offsets = group_admin.offsets_of(admin, bootstrap, name, timeout)
            views.append((found[name], offsets))
        if as_json:
            print_json([{**view._asdict(), "lag": _total_lag(offsets)} for view, offsets in views])
        else:
            for view, offsets in views:
                _show(view, offsets)
        _fail_if_refused(refused, bootstrap)


def _show(view: group_admin.GroupView, offsets: list[group_admin.OffsetView]) -> None:
    lag = _total_lag(offsets)
    facts = [view.type, view.state, plural(len(view.members), "member"), f"lag {lag:,}"]
    facts += [f"assignor {view.assignor}"] if view.assignor else []
    title = f"{view.group}  ({', '.join(facts)}, coordinator {view.coordinator})"
    rows = [
        (one["member"], one["instance"] or "", one["client"], one["host"], " ".join(one["partitions"]))
        for one in view.members
    ]
    if rows:
        print_table(("member", "instance", "client", "host", "partitions"), rows, title=title)
    else:
        print(title)


def _total_lag(offsets: list[group_admin.OffsetView]) -> int:
    return sum(row.lag or 0 for row in offsets)


@app.command(epilog=examples("headrace groups offsets billing --json"))
def offsets(
    group: Name,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show committed and log end offsets, and the lag in records and in seconds.

    The lag in seconds is the age of the oldest record that the group has not read.
    """
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        _must_exist(admin, group, timeout)
        rows = group_admin.offsets_of(admin, bootstrap, group, timeout)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        table = [(r.topic, r.partition, r.member, r.committed, r.end, r.lag, _seconds(r.lag_seconds)) for r in rows]
        print_table(("topic", "partition", "member", "committed", "end", "lag", "lag time"), table, numbers=4)
    else:
        note(f"group {group} has no committed offsets")


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.1f} s"


@app.command(epilog=examples("headrace groups delete billing --yes"))
def delete(
    groups: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups without members, and their committed offsets."""
    ask_before_deleting(f"Delete {', '.join(groups)} and all committed offsets?", yes=yes)
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        done, refused = cluster.outcomes(admin.delete_consumer_groups(groups, request_timeout=timeout))
        for name in done:
            note(f"deleted: {name}")
        _fail_if_refused(refused, bootstrap)


app.command("reset", epilog=examples("headrace groups reset billing --topic orders --to earliest --dry-run"))(reset)


@app.command(epilog=examples("headrace groups rebalances billing"))
def rebalances(
    group: Name,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show recent rebalances: cause, joined and departed members, pause per member."""
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        _must_exist(admin, group, timeout)
        rows = read_history(admin, bootstrap, group, timeout)
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("started", "number", "cause", "members", "duration", "pauses"), map(_rebalance_row, rows))
    else:
        note(f"no rebalance of {group} is recorded")


def _rebalance_row(row: dict[str, Any]) -> tuple[object, ...]:
    before, after = set(row["members_before"]), set(row["members_after"])
    changes = [f"+{one}" for one in sorted(after - before)] + [f"-{one}" for one in sorted(before - after)]
    took = "in progress" if row["ended_ms"] < 0 else f"{(row['ended_ms'] - row['began_ms']) / 1000:.1f} s"
    pauses = ", ".join(f"{member} {ms / 1000:.1f} s" for member, ms in row["pauses_ms"].items())
    members = f"{len(before)} → {len(after)} {' '.join(changes)}".rstrip()
    return show_time(row["began_ms"]), row["number"], row["cause"], members, took, pauses


def _must_exist(admin: Any, group: str, timeout_s: float) -> None:
    if all(row.group != group for row in group_admin.list_groups(admin, timeout_s)):
        fail_not_found(f"group {group} does not exist", "`headrace groups list` lists the groups")


def _fail_if_refused(refused: dict[str, Any], bootstrap: str) -> None:
    """Prints all errors; the last one determines the exit code."""
    for position, (name, error) in enumerate(refused.items()):
        if position < len(refused) - 1:
            note(f"error: {name}: {error.str()}")
            continue
        if error.code() == ErrorCode.GROUP_ID_NOT_FOUND:
            fail_not_found(f"group {name} does not exist", "`headrace groups list` lists the groups")
        fail_kafka(error.code(), f"{name}: {error.str()}", bootstrap)
