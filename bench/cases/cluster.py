"""Three nodes beside three nodes: what replication costs, and what a producer notices when a node goes."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench import topics
from bench.brokers import Policy
from bench.cases.latency import PERCENTILES, paced
from bench.cases.policies import IN_WORDS
from bench.cases.start import first_ack_and_idle
from bench.cases.throughput import produce_bulk
from bench.clients import Figures
from bench.clusters import KINDS, Cluster
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

PARTITIONS = 12
RATE = 2_000
STEADY_RATE = 1_000  # one record a millisecond: a pause is known to a millisecond
# An idempotent producer, as Java's is by default: it may try again without doubling, and keeps the order.
STEADY_CONF = {"acks": "all", "linger.ms": "0", "enable.idempotence": "true"}
_REPLICATED = "3 replicas, min.insync.replicas=2"
_START = Case("cluster/start", "Start three nodes, then idle", "empty data directories; first record creates its topic")


def _cluster(bench: Bench) -> None:
    kinds = [KINDS[kind] for kind in bench.kinds]
    bench.alternate(_START, kinds, lambda kind: _start(bench, kind), bench.repeat_long)
    with ExitStack() as stack:
        both = [stack.enter_context(_running(bench, kind)) for kind in kinds]
        _produce(bench, both)
        _latency(bench, both)
        failover = Case("cluster/failover", "Leader killed", f"kill -9 of its node, {_steady_in_words()}")
        bench.alternate(failover, both, lambda cluster: _failover(bench, cluster), bench.repeat_long)
        rolling = Case("cluster/rolling", "Rolling restart", f"stop, start, in sync; next node; {_steady_in_words()}")
        bench.alternate(rolling, both, lambda cluster: _rolling(bench, cluster), bench.repeat_long)


def _steady_in_words() -> str:
    return f"{STEADY_RATE:,} messages/s, acks=all, idempotent, 1 partition, {_REPLICATED}, each one's default settings"


@contextmanager
def _running(bench: Bench, kind: type[Cluster]) -> Iterator[Cluster]:
    bench.progress.doing(f"starting and warming up three nodes of {kind.kind}")
    cluster = kind(bench.processes, bench.new_home(f"{kind.kind}-cluster"))
    try:
        cluster.start()
        bench.warm_up(cluster)
        yield cluster
    finally:
        cluster.remove()


def _start(bench: Bench, kind: type[Cluster]) -> Figures:
    cluster = kind(bench.processes, bench.new_home(f"{kind.kind}-cluster"))
    try:
        return first_ack_and_idle(bench, cluster)
    finally:
        cluster.remove()


def _produce(bench: Bench, both: list[Cluster]) -> None:
    for policy in Policy:
        conditions = f"100 B, 1 MB batches, acks=all, {PARTITIONS} partitions, {_REPLICATED}, {IN_WORDS[policy]}"
        case = Case(f"cluster/produce/{PARTITIONS}p/{policy.value}", "Replicated produce", conditions)

        def measure(cluster: Cluster, policy: Policy = policy) -> Figures:
            with bench.topic(cluster, PARTITIONS, policy) as topic:
                return produce_bulk(bench, cluster, topic, PARTITIONS, bench.scale.cluster_messages)

        bench.alternate(case, both, measure, bench.repeat)


def _latency(bench: Bench, both: list[Cluster]) -> None:
    for policy in Policy:
        conditions = f"100 B, linger 0, acks=all, 1 partition, {_REPLICATED}, {IN_WORDS[policy]}"
        title = f"Replicated latency at {RATE:,} messages/s"
        case = Case(f"cluster/latency/{RATE}/{policy.value}", title, conditions)

        def measure(cluster: Cluster, policy: Policy = policy) -> Figures:
            with bench.topic(cluster, 1, policy) as topic:
                figures = paced(bench, cluster, topic, RATE)
            return {f"{way}_{p}": figures[f"{way}_{p}"] for way in ("ack", "receive") for p in PERCENTILES}

        bench.alternate(case, both, measure, bench.repeat)


def _failover(bench: Bench, cluster: Cluster) -> Figures:
    with bench.topic(cluster, 1, None) as topic:
        with bench.clients.steady(cluster, topic, STEADY_CONF, STEADY_RATE) as load:
            time.sleep(bench.scale.steady_seconds)
            killed = topics.leader(cluster.bootstrap, topic)
            cluster.nodes[killed].kill()
            topics.wait_for_leader_other_than(killed, cluster.bootstrap, topic)
            time.sleep(bench.scale.steady_seconds)
        cluster.nodes[killed].start()
        topics.wait_until_whole(cluster.bootstrap, [topic], 1, cluster.replicas)
    return {"pause": load.figures["pause_max"]}


def _rolling(bench: Bench, cluster: Cluster) -> Figures:
    with bench.topic(cluster, 1, None) as topic:
        with bench.clients.steady(cluster, topic, STEADY_CONF, STEADY_RATE) as load:
            time.sleep(bench.scale.steady_seconds)
            for node in cluster.nodes.values():
                node.stop()
                node.start()
                topics.wait_until_whole(cluster.bootstrap, [topic], 1, cluster.replicas)
            time.sleep(bench.scale.steady_seconds)
        return {"pause": load.figures["pause_max"]}


def _samples(plan: Plan) -> int:
    return (2 * len(Policy) * plan.repeat + 3 * plan.repeat_long) * len(plan.kinds)


CLUSTER = Group("cluster", "Three nodes", _cluster, _samples)
