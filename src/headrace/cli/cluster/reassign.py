"""Partition reassignments of `headrace cluster remove` and `rebalance`: print the plan, confirm, execute, wait.

`core/controller/reassignment_planner.py` computes the plan.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer

from headrace.cli.common.errors import fail, fail_kafka, fail_usage
from headrace.cli.common.output import human_bytes, note, plural, print_table, progress
from headrace.client.sync import configs, reassignments
from headrace.client.sync.transport import Connection
from headrace.core.controller.reassignment_planner import Assignment, Racks, Replicas
from headrace.core.controller.replica_placer import rack_or_host
from headrace.model.ids import TopicPartition

POLL_S = 0.2
PLAN_ROWS_MAX = 40  # about a screen; the rest is printed as a count
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_LIST, FOLLOWER_LIST = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


class View(NamedTuple):
    """The cluster metadata that a reassignment needs."""

    current: Assignment
    racks: Racks  # of the registered brokers
    addresses: Mapping[int, tuple[str, int]]
    leaderless: tuple[TopicPartition, ...]
    in_sync: Mapping[TopicPartition, Replicas]


def view(admin: Any, timeout_s: float) -> View:
    nodes = admin.describe_cluster(request_timeout=timeout_s).result().nodes
    topics = admin.list_topics(timeout=timeout_s).topics
    rows = {TopicPartition(name, one.id): one for name, topic in topics.items() for one in topic.partitions.values()}
    return View(
        {place: tuple(row.replicas) for place, row in rows.items()},
        {node.id: rack_or_host(node.rack, node.host) for node in nodes},
        {node.id: (node.host, node.port) for node in nodes},
        tuple(sorted(place for place, row in rows.items() if row.leader < 0)),
        {place: tuple(row.isrs) for place, row in rows.items()},
    )


def show_plan(seen: View, changes: Mapping[TopicPartition, Replicas], timeout_s: float) -> None:
    """Prints every partition that changes, and the bytes to replicate."""
    held = _sizes(seen, timeout_s)
    rows, total = [], 0
    for place, after in sorted(changes.items()):
        before = seen.current[place]
        copied = held.get(place, 0) * len(set(after) - set(before))
        total += copied
        rows.append((place, _ids(before), _ids(after), human_bytes(copied) if copied else ""))
    print_table(("partition", "from", "to", "to replicate"), rows[:PLAN_ROWS_MAX], numbers=1)
    if len(rows) > PLAN_ROWS_MAX:
        print(f"… and {len(rows) - PLAN_ROWS_MAX} more")
    print(f"{plural(len(rows), 'partition')} to reassign, {human_bytes(total)} to replicate")


def _ids(brokers: Iterable[int]) -> str:
    return " ".join(map(str, brokers))


def _sizes(seen: View, timeout_s: float) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for address in seen.addresses.values():
        with Connection(*address, timeout_s) as connection:
            for place, size in reassignments.sizes(connection).items():
                found[place] = max(size, found.get(place, 0))
    return found


def ask(question: str, *, yes: bool) -> None:
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        fail_usage("confirmation required to move replicas", "pass --yes if there is no terminal")
    typer.confirm(question, abort=True)


def carry_out(
    seen: View, changes: Mapping[TopicPartition, Replicas], bytes_per_s: int | None, timeout_s: float, *, label: str
) -> None:
    """Returns when all reassignments are complete. The cluster continues them if this process is interrupted."""
    address = next(iter(seen.addresses.values()))
    with Connection(*address, timeout_s) as connection, _throttled(connection, seen, changes, bytes_per_s):
        reassignments.move(connection, changes)
        with progress(label, len(changes)) as advance:
            left = len(changes)
            while left:
                time.sleep(POLL_S)
                now = len(reassignments.moving(connection).keys() & changes.keys())
                advance(left - now)
                left = now
        reassignments.elect_preferred_leaders(connection, list(changes))


@contextmanager
def _throttled(
    connection: Connection, seen: View, changes: Mapping[TopicPartition, Replicas], bytes_per_s: int | None
) -> Iterator[None]:
    """Sets replication throttles like kafka-reassign-partitions, and removes them at the end.

    The rate is a config of every broker; the throttled replicas are a config of every topic.
    """
    if bytes_per_s is None:
        yield
        return
    lists = _throttled_lists(seen.current, changes)
    rates = {LEADER_RATE: str(bytes_per_s), FOLLOWER_RATE: str(bytes_per_s)}
    try:
        for broker in seen.racks:
            _alter(connection, configs.ResourceType.BROKER, str(broker), rates, ())
        for topic, wanted in lists.items():
            _alter(connection, configs.ResourceType.TOPIC, topic, wanted, ())
        yield
    finally:
        for broker in seen.racks:
            _alter(connection, configs.ResourceType.BROKER, str(broker), {}, rates)
        for topic, wanted in lists.items():
            _alter(connection, configs.ResourceType.TOPIC, topic, {}, wanted)


def _throttled_lists(current: Assignment, changes: Mapping[TopicPartition, Replicas]) -> dict[str, dict[str, str]]:
    """Returns the throttled replicas of each topic as partition:broker pairs.

    Current replicas are throttled as leaders, new replicas as followers.
    """
    lists: dict[str, dict[str, list[str]]] = {}
    for (topic, index), after in sorted(changes.items()):
        before = current[TopicPartition(topic, index)]
        of_topic = lists.setdefault(topic, {LEADER_LIST: [], FOLLOWER_LIST: []})
        of_topic[LEADER_LIST] += [f"{index}:{one}" for one in before]
        of_topic[FOLLOWER_LIST] += [f"{index}:{one}" for one in after if one not in before]
    return {topic: {key: ",".join(pairs) for key, pairs in both.items()} for topic, both in lists.items()}


def _alter(
    connection: Connection, kind: configs.ResourceType, name: str, wanted: Mapping[str, str], unwanted: Iterable[str]
) -> None:
    refusal = configs.alter(connection, kind, name, wanted, unwanted)
    if refusal is not None:
        fail_kafka(refusal.code, refusal.message)


def check_nothing_is_lost(seen: View, leaving: int) -> None:
    """Fails if a partition has no leader, or if its only in-sync replica is on a leaving broker that is unavailable."""
    if seen.leaderless:
        fail(
            f"{seen.leaderless[0]} has no leader, so it cannot be replicated"
            + (f" (and {len(seen.leaderless) - 1} more)" if len(seen.leaderless) > 1 else ""),
            "restart its brokers first; `headrace cluster status` shows the available ones",
        )
    if leaving not in seen.racks:
        only = [place for place, isr in seen.in_sync.items() if set(isr) == {leaving}]
        if only:
            fail(f"the only in-sync replica of {only[0]} is on broker {leaving}", "restart that broker first")


def wait_until_gone(admin: Any, broker: int, seconds_max: float, timeout_s: float) -> bool:
    deadline = time.monotonic() + seconds_max
    while broker in {node.id for node in admin.describe_cluster(request_timeout=timeout_s).result().nodes}:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def unregister(seen: View, broker: int, timeout_s: float) -> None:
    address = next(address for one, address in seen.addresses.items() if one != broker)
    with Connection(*address, timeout_s) as connection:
        reassignments.unregister(connection, broker)
    note(f"broker {broker} unregistered")
