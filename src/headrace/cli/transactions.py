"""`headrace transactions …`: list, describe, abort, find-hanging."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.errors import fail, fail_kafka, fail_not_found, fail_usage, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout
from headrace.cli.common.output import note, print_json, print_table
from headrace.cli.common.time_arguments import show_time
from headrace.client import admin as cluster
from headrace.client.sync import transactions as asked
from headrace.client.sync.transport import Connection
from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(
    name="transactions",
    help="List, describe and abort transactions, and find hanging ones.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

# The longest timeout that a producer may ask for by default (transaction.max.timeout.ms): what is open for longer
# should have been aborted by its coordinator.
HANGING_MINUTES = 15.0

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="One or more transactional ids.")]


@contextmanager
def _refusals_told(bootstrap: str) -> Iterator[None]:
    with failures_told(bootstrap):
        try:
            yield
        except asked.TransactionError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                fail_not_found(str(error), "`headrace transactions list` shows what there is")
            fail_kafka(error.code, str(error), bootstrap)


@app.command("list", epilog=examples("headrace transactions list --state Ongoing --longer-than 60"))
def list_(
    state: Annotated[list[str] | None, typer.Option("--state", help="Only in this state, e.g. Ongoing.")] = None,
    longer_than: Annotated[
        float | None, typer.Option("--longer-than", metavar="SECONDS", help="Only what runs for longer.")
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List transactional ids with their producer and state."""
    longer_ms = -1 if longer_than is None else int(longer_than * 1000)
    with _refusals_told(bootstrap):
        rows = sorted(_listed(cluster.connect(bootstrap, timeout), timeout, state or [], longer_ms))
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(("transactional id", "producer id", "state"), rows)
    else:
        note("no such transactions")


@app.command(epilog=examples("headrace transactions describe payments-1"))
def describe(
    ids: Ids, as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Show who owns a transactional id, and what its open transaction has written to."""
    with _refusals_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        found = []
        for name in ids:
            with _coordinator(admin, name, timeout) as connection:
                found.append(asked.describe_transaction(connection, name))
    if as_json:
        print_json([{**one._asdict(), "partitions": [list(place) for place in one.partitions]} for one in found])
        return
    rows = [
        (
            one.transactional_id,
            one.state,
            f"{one.producer_id}, epoch {one.producer_epoch}",
            f"{one.timeout_ms / 1000:g} s",
            show_time(one.started_ms),
            " ".join(f"{topic}-{index}" for topic, index in one.partitions),
        )
        for one in found
    ]
    print_table(("transactional id", "state", "producer", "timeout", "begun", "partitions"), rows)


@app.command(
    epilog=examples(
        "headrace transactions abort payments-1", "headrace transactions abort --topic orders --partition 0 --start 17"
    )
)
def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Where a hanging transaction is open.")] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0)] = 0,
    start: Annotated[int | None, typer.Option("--start", metavar="OFFSET", help="Where it begins.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort what a transactional id has open, and fence its producer; or end a hanging transaction in a partition."""
    if (transactional_id is None) == (topic is None):
        fail_usage("name a transactional id, or --topic, --partition and --start of a hanging transaction")
    if topic is not None and start is None:
        fail_usage("--start is missing", "`headrace transactions find-hanging` shows where it begins")
    what = f"the transaction of {transactional_id}" if topic is None else f"what is open in {topic}-{partition}"
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Abort {what}?"):
        raise typer.Exit(1)
    with _refusals_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        if transactional_id is not None:
            _abort_id(admin, transactional_id, timeout)
        else:
            assert topic is not None
            assert start is not None
            _abort_hanging(admin, topic, partition, start, timeout)
    note(f"aborted {what}")


def _abort_id(admin: "AdminClient", name: str, timeout_s: float) -> None:
    with _coordinator(admin, name, timeout_s) as connection:
        asked.describe_transaction(connection, name)  # else a misspelt id would be made, not aborted
        asked.fence(connection, name)


def _abort_hanging(admin: "AdminClient", topic: str, partition: int, start: int, timeout_s: float) -> None:
    with _leader(admin, topic, partition, timeout_s) as connection:
        for producer in asked.open_producers(connection, topic, [partition]):
            if producer.start_offset == start:
                asked.abort_in_partition(connection, producer)
                return
    fail_not_found(f"no transaction that begins at offset {start} is open in {topic}-{partition}")


@app.command("find-hanging", epilog=examples("headrace transactions find-hanging --topic orders"))
def find_hanging(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only in this topic. Default: all.")] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="MINUTES", help="Written to last so long ago.")
    ] = HANGING_MINUTES,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find transactions that no coordinator will end: they hold back every reader of committed data."""
    latest_ms = int((time.time() - older_than * 60) * 1000)
    with _refusals_told(bootstrap):
        admin = cluster.connect(bootstrap, timeout)
        suspects = [one for one in _open(admin, topic, timeout) if one.last_timestamp_ms <= latest_ms]
        known = _known_open(admin, timeout) if suspects else set()
        hanging = [one for one in suspects if (one.producer_id, one.topic, one.partition) not in known]
    if as_json:
        print_json([one._asdict() for one in hanging])
    elif hanging:
        rows = [
            (one.topic, one.partition, one.start_offset, one.producer_id, show_time(one.last_timestamp_ms))
            for one in hanging
        ]
        print_table(("topic", "partition", "start", "producer id", "last written"), rows)
        note("end one with `headrace transactions abort --topic TOPIC --partition N --start OFFSET`")
    else:
        note("no transaction hangs")


# Whom to ask


def _connect(broker: Any, timeout_s: float) -> Connection:
    """`broker` is one of librdkafka's, whose address is not declared."""
    return Connection(broker.host, broker.port, timeout_s)


def _listed(admin: "AdminClient", timeout_s: float, states: list[str], longer_ms: int) -> Iterator[asked.Listed]:
    for broker in admin.list_topics(timeout=timeout_s).brokers.values():
        with _connect(broker, timeout_s) as connection:
            yield from asked.list_transactions(connection, states, longer_ms)


@contextmanager
def _coordinator(admin: "AdminClient", name: str, timeout_s: float) -> Iterator[Connection]:
    broker = next(iter(admin.list_topics(timeout=timeout_s).brokers.values()))
    with _connect(broker, timeout_s) as connection:
        address = asked.coordinator_of(connection, name)
    with Connection(*address, timeout_s) as connection:
        yield connection


@contextmanager
def _leader(admin: "AdminClient", topic: str, partition: int, timeout_s: float) -> Iterator[Connection]:
    facts = admin.list_topics(timeout=timeout_s)
    found = facts.topics[topic].partitions.get(partition) if topic in facts.topics else None
    if found is None:
        fail_not_found(f"there is no partition {topic}-{partition}", "`headrace topics list` shows what there is")
    leader = facts.brokers.get(found.leader)
    if leader is None:
        fail(f"no leader for {topic}-{partition} at the moment")
    with _connect(leader, timeout_s) as connection:
        yield connection


def _open(admin: "AdminClient", topic: str | None, timeout_s: float) -> Iterator[asked.OpenProducer]:
    """Every open transaction in every partition, as the partitions' leaders know them."""
    facts = admin.list_topics(timeout=timeout_s)  # all of them: asking for one by name would make it
    if topic is not None and topic not in facts.topics:
        fail_not_found(f"there is no topic {topic}", "`headrace topics list` shows what there is")
    for name, one in facts.topics.items():
        if topic not in (None, name):
            continue
        by_leader: dict[int, list[int]] = {}
        for index, partition in one.partitions.items():
            by_leader.setdefault(partition.leader, []).append(index)
        for leader, indexes in by_leader.items():
            broker = facts.brokers.get(leader)
            if broker is not None:
                with _connect(broker, timeout_s) as connection:
                    yield from asked.open_producers(connection, name, indexes)


def _known_open(admin: "AdminClient", timeout_s: float) -> set[tuple[int, str, int]]:
    """Producer and partition of everything that a coordinator has open, and will therefore end."""
    known = set()
    for listed in _listed(admin, timeout_s, ["Ongoing", "PrepareCommit", "PrepareAbort"], -1):
        with _coordinator(admin, listed.transactional_id, timeout_s) as connection:
            described = asked.describe_transaction(connection, listed.transactional_id)
        known |= {(described.producer_id, *place) for place in described.partitions}
    return known
