"""`headrace cluster …`: up, status, add, rebalance, remove, down."""

import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.errors import fail, fail_not_found, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, FAILURE, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout, parse_pairs
from headrace.cli.common.output import note, plural, print_json, print_table

app = typer.Typer(
    name="cluster",
    help="Run several brokers on this host; show a cluster, and move its replicas.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

NODES_MAX = 32  # each broker is a process with a port of its own
DOWN_SECONDS_MAX = 120.0
ADD_SECONDS_MAX = 60.0
DRAIN_ROUNDS_MAX = 10  # each drains partitions that were created during the one before
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle", min=1, metavar="BYTES/S", help=("Maximum replication rate per broker, in bytes per second.")
    ),
]
Directory = Annotated[Path, typer.Option("--dir", help="Directory of the cluster: data, logs and state.")]


@app.command(
    epilog=examples("headrace cluster up --nodes 3", "headrace cluster up --dir /tmp/c --listen-base 19091"),
)
def up(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=NODES_MAX, help="Number of brokers.")] = 3,
    directory: Directory = Path("cluster"),
    listen_base: Annotated[
        int, typer.Option("--listen-base", min=1, max=65535 - NODES_MAX, help="Broker i listens on port PORT+i.")
    ] = 9091,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting of all brokers; repeatable.")
    ] = None,
    etcd: Annotated[
        bool,
        typer.Option("--etcd", help=("Store metadata in etcd, with members next to the first three brokers.")),
    ] = False,
) -> None:
    """Start a cluster on this host, in the foreground.

    Restarts processes that end. Ctrl-C stops the brokers one after the other.
    """
    from headrace.app.local_cluster.runner import LocalClusterRunner

    settings = parse_pairs(set_ or [], "--set num.partitions=8")
    with failures_told(f"127.0.0.1:{listen_base + 1}"):
        cluster = LocalClusterRunner(str(directory), nodes, listen_base, settings, etcd=etcd)
        stopping: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: stopping.append(received))
        try:
            state = cluster.start()
            for node in state.nodes:
                print(f"broker {node.node_id}  {node.address}  pid {node.pid}", flush=True)
            print(f"bootstrap: {state.bootstrap}", flush=True)
            while not stopping:
                time.sleep(0.2)
                for node in cluster.obey():
                    print(f"broker {node.node_id}  {node.address}  pid {node.pid}", flush=True)
                for what in cluster.mend():
                    note(f"{what}; see the logs in {directory}")
        except RuntimeError as error:
            fail(str(error), "is another process using the ports?", FAILURE)
        finally:
            is_clean = cluster.stop(note)
        if not is_clean:
            fail("a broker did not stop cleanly; its next start runs recovery", f"see its log in {directory}", FAILURE)


@app.command(epilog=examples("headrace cluster down"))
def down(directory: Directory = Path("cluster")) -> None:
    """Stop the cluster that `headrace cluster up` runs in a directory."""
    from headrace.app.local_cluster.control import ask_to_stop, read_state

    state = read_state(str(directory))
    if state is None:
        fail_not_found(f"no cluster runs in {directory}", "`headrace cluster up` starts one")
    ask_to_stop(state)
    deadline = time.monotonic() + DOWN_SECONDS_MAX
    while read_state(str(directory)) is not None:
        if time.monotonic() > deadline:
            fail(f"process {state.supervisor} has not stopped", f"see the logs in {directory}")
        time.sleep(0.1)
    note(f"{plural(len(state.nodes), 'broker')} stopped")


@app.command(epilog=examples("headrace cluster add", "headrace cluster add && headrace cluster rebalance"))
def add(directory: Directory = Path("cluster")) -> None:
    """Start one more broker in a cluster of `headrace cluster up`, and print its address.

    It has no replicas until `headrace cluster rebalance`, or until new topics are created.
    """
    from headrace.app.local_cluster.control import ask_to_add

    with failures_told():
        node = ask_to_add(str(directory), ADD_SECONDS_MAX)
        print(f"broker {node.node_id}  {node.address}  pid {node.pid}")
        note("new topics may be placed on it; `headrace cluster rebalance` moves existing replicas to it")


@app.command(
    epilog=examples("headrace cluster remove 4 --dry-run", "headrace cluster remove 4 --yes --throttle 50000000")
)
def remove(
    broker: Annotated[int, typer.Argument(help="ID of the broker.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory of a cluster of `up`; the broker is also stopped.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move all replicas off a broker, then unregister it. Rejected where data would be lost.

    A broker that still runs is only drained: stop it, then run the command again.
    """
    from headrace.app.local_cluster.control import check_removable
    from headrace.cli.cluster import reassign as moves
    from headrace.client import admin as client
    from headrace.core.controller.reassignment_planner import drained

    with failures_told(bootstrap):
        if directory is not None:
            check_removable(str(directory), broker)
        admin = client.connect(bootstrap, timeout)
        for _ in range(DRAIN_ROUNDS_MAX):
            seen = moves.view(admin, timeout)
            staying = {one: rack for one, rack in seen.racks.items() if one != broker}
            moves.check_nothing_is_lost(seen, broker)
            changes = drained(seen.current, broker, staying)
            if not changes:
                break
            moves.show_plan(seen, changes, timeout)
            if dry_run:
                return
            moves.ask(f"Move them off broker {broker}?", yes=yes)
            moves.carry_out(seen, changes, throttle, timeout, label=f"draining broker {broker}")
            yes = True  # the next pass moves partitions that were created during this one
        else:
            fail(f"broker {broker} keeps receiving new partitions", "stop the clients that create topics, then retry")
        note(f"broker {broker} has no replicas")
        if dry_run:
            return
        if broker in seen.racks and directory is not None:
            from headrace.app.local_cluster.control import ask_to_remove

            ask_to_remove(str(directory), broker, ADD_SECONDS_MAX)
            moves.wait_until_gone(admin, broker, DOWN_SECONDS_MAX, timeout)
        elif broker in seen.racks:
            note(f"stop its process, then run `headrace cluster remove {broker}` again to unregister it")
            return
        moves.unregister(seen, broker, timeout)


@app.command(epilog=examples("headrace cluster rebalance --dry-run", "headrace cluster rebalance --yes"))
def rebalance(
    dry_run: DryRun = False,
    yes: Yes = False,
    throttle: Throttle = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Distribute replicas and leaders evenly over the available brokers, with as few moves as possible."""
    from headrace.cli.cluster import reassign as moves
    from headrace.client import admin as client
    from headrace.core.controller.reassignment_planner import balanced

    with failures_told(bootstrap):
        seen = moves.view(client.connect(bootstrap, timeout), timeout)
        away = {one for replicas in seen.current.values() for one in replicas} - seen.racks.keys()
        if away:
            fail(f"broker {min(away)} is not available", f"restart it, or run `headrace cluster remove {min(away)}`")
        changes = balanced(seen.current, seen.racks)
        if not changes:
            note("replicas and leaders are already distributed evenly")
            return
        moves.show_plan(seen, changes, timeout)
        if not dry_run:
            moves.ask("Execute this plan?", yes=yes)
            moves.carry_out(seen, changes, throttle, timeout, label="rebalancing")
            note(f"reassigned {plural(len(changes), 'partition')}")


@app.command(epilog=examples("headrace cluster status --bootstrap localhost:9092"))
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, timeout: Timeout = DEFAULT_TIMEOUT_S, json: Json = False) -> None:
    """Show brokers, the active controller, the metadata store, and under-replicated or offline partitions."""
    from headrace.client import admin as client

    with failures_told(bootstrap):
        found = client.connect(bootstrap, timeout).list_topics(timeout=timeout)
        led = dict.fromkeys(found.brokers, 0)
        partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
        for one in partitions:
            if one.leader in led:
                led[one.leader] += 1
        behind = sum(len(one.isrs) < len(one.replicas) for one in partitions)
        leaderless = sum(one.leader not in led for one in partitions)
        problems = _store_problems(((one.id, str(one.host), one.port) for one in found.brokers.values()), timeout)
        if json:
            print_json(
                {
                    "cluster_id": found.cluster_id,
                    "controller": found.controller_id,
                    "brokers": [{"id": one.id, "address": f"{one.host}:{one.port}"} for one in found.brokers.values()],
                    "partitions": len(partitions),
                    "under_replicated": behind,
                    "without_leader": leaderless,
                    "metadata_store": {"available": not problems, "problems": problems},
                }
            )
            return
        role = "controller" if found.controller_id not in problems else "controller (inactive)"
        rows = [
            (one.id, f"{one.host}:{one.port}", role if one.id == found.controller_id else "", led[one.id])
            for one in sorted(found.brokers.values(), key=lambda broker: broker.id)
        ]
        print_table(("broker", "address", "", "leads"), rows, numbers=1)
        print(f"{plural(len(partitions), 'partition')}, {behind} under-replicated, {leaderless} without a leader")
        for node_id, problem in problems.items():
            print(f"broker {node_id}: {problem}")


def _store_problems(addresses: Iterable[tuple[int, str, int]], timeout: float) -> dict[int, str]:
    """Returns, by broker, why it has no active controller; each broker has a session of its own in the store."""
    from headrace.client.admin import quorum_problem
    from headrace.client.core.errors import KafkaApiError
    from headrace.client.sync.transport import Connection

    found: dict[int, str | None] = {}
    for node_id, host, port in sorted(addresses):
        try:
            with Connection(host, port, timeout) as connection:
                found[node_id] = quorum_problem(connection)
        except (OSError, KafkaApiError) as error:
            found[node_id] = f"does not respond ({error})"
    return {node_id: problem for node_id, problem in found.items() if problem is not None}
