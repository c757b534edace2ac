"""How long a producer waits for acknowledgements when the node that leads its partition dies or stands still.

With the default timers, and with those of a slow network. Every node takes its turn, so that the one that fails is
often the controller, or has etcd's leader beside it: both have to be replaced first. Kafka is measured in `cluster.py`.

A client cannot know that a paused node will not respond: librdkafka waits for `socket.timeout.ms` (a minute by default)
before it sends a request again. Here it waits for half a second, so that the figure shows the cluster.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench import topics
from bench.brokers import Broker
from bench.cases.cluster import STEADY_CONF, STEADY_RATE
from bench.clients import Figures
from bench.clusters import Cluster, HeadraceCluster, LongTimersCluster
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

_LOAD = f"{STEADY_RATE:,} messages/s, acks=all, idempotent, 1 partition, 3 replicas, min.insync.replicas=2"
_CONF = {**STEADY_CONF, "socket.timeout.ms": "500", "request.timeout.ms": "500"}
_LONG = "election timeout 3 to 6 s"

Fault = Callable[[Broker], Callable[[], None]]  # returns what ends it


def _killed(node: Broker) -> Callable[[], None]:
    node.kill()
    return node.start


def _paused(node: Broker) -> Callable[[], None]:
    node.pause()
    return node.resume


_CASES: tuple[tuple[Case, type[HeadraceCluster], Fault], ...] = (
    (Case("failover/killed", "Leader killed", f"kill -9 of its node, {_LOAD}"), HeadraceCluster, _killed),
    (Case("failover/paused", "Leader paused", f"kill -STOP of its node, {_LOAD}"), HeadraceCluster, _paused),
    (
        Case("failover/killed/long-timers", "Leader killed, long timers", f"kill -9 of its node, {_LONG}, {_LOAD}"),
        LongTimersCluster,
        _killed,
    ),
    (
        Case("failover/paused/long-timers", "Leader paused, long timers", f"kill -STOP of its node, {_LONG}, {_LOAD}"),
        LongTimersCluster,
        _paused,
    ),
)


def _failover(bench: Bench) -> None:
    if Headrace not in bench.kinds:
        return
    for case, kind, fault in _CASES:

        def measure(cluster: Cluster, fault: Fault = fault) -> Figures:
            return _pause(bench, cluster, fault)

        with _running(bench, kind) as cluster:
            bench.alternate(case, [cluster], measure, bench.repeat)


@contextmanager
def _running(bench: Bench, kind: type[HeadraceCluster]) -> Iterator[Cluster]:
    cluster = kind(bench.processes, bench.new_home("failover"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def _pause(bench: Bench, cluster: Cluster, fault: Fault) -> Figures:
    with bench.topic(cluster, 1, None) as topic:
        with bench.clients.steady(cluster, topic, _CONF, STEADY_RATE) as load:
            time.sleep(bench.scale.steady_seconds)
            failed = topics.leader(cluster.bootstrap, topic)
            end_fault = fault(cluster.nodes[failed])
            others = ",".join(node.bootstrap for node_id, node in cluster.nodes.items() if node_id != failed)
            topics.wait_for_leader_other_than(failed, others, topic)
            time.sleep(bench.scale.steady_seconds)
        end_fault()
        topics.wait_until_whole(cluster.bootstrap, [topic], 1, cluster.replicas)
    return {"pause": load.figures["pause_max"]}


def _samples(plan: Plan) -> int:
    return len(_CASES) * plan.repeat * (Headrace in plan.kinds)


FAILOVER = Group("failover", "Failover of headrace", _failover, _samples)
