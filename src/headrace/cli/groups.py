"""`headrace groups …`: list, describe, offsets, reset, delete, rebalances."""

from typing import Annotated, Any

import typer

from headrace.app.group_history import read_history
from headrace.cli.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.failures import ask_before_deleting, fail_kafka, fail_not_found, failures_told
from headrace.cli.group_reset import reset
from headrace.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout
from headrace.cli.output import note, plural, print_json, print_table
from headrace.cli.times import show_time
from headrace.client import admin as cluster
from headrace.client import groups as group_admin
from headrace.model.errors import ErrorCode

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
        note("no such groups" if found else "no groups yet; a consumer with a group.id makes one")


@app.command(epilog=examples("headrace groups describe billing"))
def describe(
    groups: Names,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show members, what each of them reads, and how far behind they are."""
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
    """Show how far a group has got: offsets, and its lag in records and in seconds.

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
        print_table(("topic", "partition", "member", "committed", "end", "lag", "behind"), table, numbers=4)
    else:
        note(f"{group} has committed nothing yet")


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.1f} s"


@app.command(epilog=examples("headrace groups delete billing --yes"))
def delete(
    groups: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups that nobody uses, with their offsets."""
    ask_before_deleting(f"Delete {', '.join(groups)} with all offsets?", yes=yes)
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
    """Show why a group has rebalanced lately, who came and went, and how long each member stood still."""
    with failures_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        _must_exist(admin, group, timeout)
        rows = read_history(admin, bootstrap, group, timeout)
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("when", "number", "cause", "members", "took", "pauses"), map(_rebalance_row, rows))
    else:
        note(f"no rebalance of {group} is on record")


def _rebalance_row(row: dict[str, Any]) -> tuple[object, ...]:
    before, after = set(row["members_before"]), set(row["members_after"])
    changes = [f"+{one}" for one in sorted(after - before)] + [f"-{one}" for one in sorted(before - after)]
    took = "under way" if row["ended_ms"] < 0 else f"{(row['ended_ms'] - row['began_ms']) / 1000:.1f} s"
    pauses = ", ".join(f"{member} {ms / 1000:.1f} s" for member, ms in row["pauses_ms"].items())
    members = f"{len(before)} → {len(after)} {' '.join(changes)}".rstrip()
    return show_time(row["began_ms"]), row["number"], row["cause"], members, took, pauses


def _must_exist(admin: Any, group: str, timeout_s: float) -> None:
    if all(row.group != group for row in group_admin.list_groups(admin, timeout_s)):
        fail_not_found(f"there is no group {group}", "`headrace groups list` shows what there is")


def _fail_if_refused(refused: dict[str, Any], bootstrap: str) -> None:
    """All refusals are told; the last one decides the exit code."""
    for position, (name, error) in enumerate(refused.items()):
        if position < len(refused) - 1:
            note(f"error: {name}: {error.str()}")
            continue
        if error.code() == ErrorCode.GROUP_ID_NOT_FOUND:
            fail_not_found(f"there is no group {name}", "`headrace groups list` shows what there is")
        fail_kafka(error.code(), f"{name}: {error.str()}", bootstrap)
