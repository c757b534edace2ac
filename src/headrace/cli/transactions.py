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

# Default of transaction.max.timeout.ms. The coordinator should have aborted a transaction that is open for longer.
HANGING_MINUTES = 15.0

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="One or more transactional ids.")]


@contextmanager
def _refusals_told(bootstrap: str) -> Iterator[None]:
    with failures_told(bootstrap):
        try:
            yield
        except asked.TransactionError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                fail_not_found(str(error), "`headrace transactions list` lists the transactional ids")
            fail_kafka(error.code, str(error), bootstrap)


@app.command("list", epilog=examples("headrace transactions list --state Ongoing --longer-than 60"))
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state, e.g. Ongoing; repeatable.")
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option("--longer-than", metavar="SECONDS", help="Only transactions that have been running for longer."),
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
        note("no transactions match")


@app.command(epilog=examples("headrace transactions describe payments-1"))
def describe(
    ids: Ids, as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Show the producer and the state of a transactional id, and the partitions of its open transaction."""
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
    print_table(("transactional id", "state", "producer", "timeout", "started", "partitions"), rows)


@app.command(
    epilog=examples(
        "headrace transactions abort payments-1", "headrace transactions abort --topic orders --partition 0 --start 17"
    )
)
def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Topic of a hanging transaction.")] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="Its partition.")] = 0,
    start: Annotated[int | None, typer.Option("--start", metavar="OFFSET", help="Its start offset.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the open transaction of a transactional id, and fence its producer.

    With --topic, --partition and --start instead of an id, abort a hanging transaction in that partition.
    """
    if (transactional_id is None) == (topic is None):
        fail_usage("specify a transactional id, or --topic, --partition and --start of a hanging transaction")
    if topic is not None and start is None:
        fail_usage("--start is required", "`headrace transactions find-hanging` shows the start offset")
    what = f"the transaction of {transactional_id}" if topic is None else f"the transaction in {topic}-{partition}"
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
        asked.describe_transaction(connection, name)  # InitProducerId would create a misspelled id
        asked.fence(connection, name)


def _abort_hanging(admin: "AdminClient", topic: str, partition: int, start: int, timeout_s: float) -> None:
    with _leader(admin, topic, partition, timeout_s) as connection:
        for producer in asked.open_producers(connection, topic, [partition]):
            if producer.start_offset == start:
                asked.abort_in_partition(connection, producer)
                return
    fail_not_found(f"no open transaction starts at offset {start} in {topic}-{partition}")


@app.command("find-hanging", epilog=examples("headrace transactions find-hanging --topic orders"))
def find_hanging(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic. Default: all.")] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="MINUTES", help="Minimum time since the last write.")
    ] = HANGING_MINUTES,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find hanging transactions: open in a partition, but unknown to every coordinator.

    They hold back the last stable offset, and with it every `read_committed` consumer.
    """
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
        note("`headrace transactions abort --topic TOPIC --partition N --start OFFSET` aborts a transaction")
    else:
        note("no hanging transactions")


# Connections


def _connect(broker: Any, timeout_s: float) -> Connection:
    """Connects to a broker of librdkafka's metadata, whose type is not declared."""
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
        fail_not_found(f"partition {topic}-{partition} does not exist", "`headrace topics list` lists the topics")
    leader = facts.brokers.get(found.leader)
    if leader is None:
        fail(f"partition {topic}-{partition} has no leader")
    with _connect(leader, timeout_s) as connection:
        yield connection


def _open(admin: "AdminClient", topic: str | None, timeout_s: float) -> Iterator[asked.OpenProducer]:
    """Yields every open transaction of every partition, from the partition leaders."""
    facts = admin.list_topics(timeout=timeout_s)  # all topics: a request by name could create the topic
    if topic is not None and topic not in facts.topics:
        fail_not_found(f"topic {topic} does not exist", "`headrace topics list` lists the topics")
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
    """Returns producer and partition of every open transaction of a coordinator, which will end it."""
    known = set()
    for listed in _listed(admin, timeout_s, ["Ongoing", "PrepareCommit", "PrepareAbort"], -1):
        with _coordinator(admin, listed.transactional_id, timeout_s) as connection:
            described = asked.describe_transaction(connection, listed.transactional_id)
        known |= {(described.producer_id, *place) for place in described.partitions}
    return known
