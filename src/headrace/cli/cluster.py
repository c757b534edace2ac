"""`headrace cluster …`: several brokers on this machine, up, looked at and down."""

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.exit_codes import EXIT_CODES_HELP, FAILURE, examples
from headrace.cli.failures import fail, fail_not_found, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout, parse_pairs
from headrace.cli.output import note, plural, print_json, print_table

app = typer.Typer(
    name="cluster",
    help="Run several brokers on this machine, and look at a cluster.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

NODES_MAX = 32  # each is a process with its own port; more do not fit on a machine that is worth having
DOWN_SECONDS_MAX = 120.0
Directory = Annotated[Path, typer.Option("--dir", help="Where the cluster keeps its data.")]


@app.command(
    epilog=examples("headrace cluster up --nodes 3", "headrace cluster up --dir /tmp/c --listen-base 19091"),
)
def up(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=NODES_MAX, help="How many brokers.")] = 3,
    directory: Directory = Path("cluster"),
    listen_base: Annotated[
        int, typer.Option("--listen-base", min=1, max=65535 - NODES_MAX, help="Broker i listens on this port plus i.")
    ] = 9091,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting for all brokers.")
    ] = None,
) -> None:
    """Start a cluster in the foreground. Ctrl-C stops it, one broker after the other."""
    from headrace.app.local_cluster import MachineCluster

    settings = parse_pairs(set_ or [], "--set num.partitions=8")
    cluster = MachineCluster(str(directory), nodes, listen_base, settings)
    with failures_told(f"127.0.0.1:{listen_base + 1}"):
        stopping: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: stopping.append(received))
        try:
            state = cluster.start()
            for node in state.nodes:
                print(f"broker {node.node_id}  {node.address}  pid {node.pid}", flush=True)
            print(f"bootstrap: {state.bootstrap}", flush=True)
            gone: dict[int, str] = {}
            while not stopping:
                time.sleep(0.2)
                for node_id, reason in cluster.ended().items():
                    if node_id not in gone:
                        note(f"broker {node_id} has ended: {reason}; see {directory}/broker-{node_id}.log")
                        gone[node_id] = reason
        except RuntimeError as error:
            fail(str(error), "is another process using the ports?", FAILURE)
        finally:
            cluster.stop(lambda node_id: note(f"broker {node_id} has stopped"))


@app.command(epilog=examples("headrace cluster down"))
def down(directory: Directory = Path("cluster")) -> None:
    """Stop the cluster that `up` runs in a directory."""
    from headrace.app.local_cluster import ask_to_stop, read_state

    state = read_state(str(directory))
    if state is None:
        fail_not_found(f"no cluster runs in {directory}", "`headrace cluster up` starts one")
    ask_to_stop(state)
    deadline = time.monotonic() + DOWN_SECONDS_MAX
    while read_state(str(directory)) is not None:
        if time.monotonic() > deadline:
            fail(f"process {state.supervisor} has not stopped", f"look at the logs in {directory}")
        time.sleep(0.1)
    note(f"{plural(len(state.nodes), 'broker')} stopped")


@app.command(epilog=examples("headrace cluster status --bootstrap localhost:9092"))
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, timeout: Timeout = DEFAULT_TIMEOUT_S, json: Json = False) -> None:
    """Who is there, who is the controller, and whether every partition has its replicas in sync."""
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
        if json:
            print_json(
                {
                    "cluster_id": found.cluster_id,
                    "controller": found.controller_id,
                    "brokers": [{"id": one.id, "address": f"{one.host}:{one.port}"} for one in found.brokers.values()],
                    "partitions": len(partitions),
                    "under_replicated": behind,
                    "without_leader": leaderless,
                }
            )
            return
        rows = [
            (one.id, f"{one.host}:{one.port}", "controller" if one.id == found.controller_id else "", led[one.id])
            for one in sorted(found.brokers.values(), key=lambda broker: broker.id)
        ]
        print_table(("broker", "address", "", "leads"), rows, numbers=1)
        print(f"{plural(len(partitions), 'partition')}, {behind} under-replicated, {leaderless} without a leader")
