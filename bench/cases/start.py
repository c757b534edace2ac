"""From nothing to the first acked produce, and what a broker costs that nobody uses."""

import time

from bench.brokers import Broker
from bench.clients import Figures
from bench.clusters import Cluster
from bench.ledger import Case
from bench.plan import Plan
from bench.proc import idle_cpu_percent, proportional_mib, resident_mib
from bench.runner import Bench, Group

_CASE = Case(
    "start/fresh",
    "Start, then idle",
    "empty data directory (Kafka's formatted before), first record creates its topic, acks=all, defaults",
)


def first_ack_seconds(bench: Bench, broker: Broker | Cluster, topic: str) -> float:
    """Start the node, or all of them, with a producer already waiting at the port (of the first one)."""
    producer = bench.clients.waiting_producer(broker, topic)
    start = time.monotonic()
    broker.spawn()
    return bench.clients.acked_at(producer) - start


def first_ack_and_idle(bench: Bench, broker: Broker | Cluster) -> Figures:
    first_ack = first_ack_seconds(bench, broker, "first")
    time.sleep(bench.scale.settle_seconds)
    idle_cpu = idle_cpu_percent(broker.pids, bench.scale.idle_seconds)
    memory = {"rss": resident_mib(*broker.pids), "pss": proportional_mib(*broker.pids)}
    return {"first_ack": first_ack, **memory, "idle_cpu": idle_cpu}


def _start(bench: Bench) -> None:
    def measure(kind: type[Broker]) -> Figures:
        with bench.fresh(kind) as broker:
            return first_ack_and_idle(bench, broker)

    bench.alternate(_CASE, bench.kinds, measure, bench.repeat)


def _samples(plan: Plan) -> int:
    return plan.repeat * len(plan.kinds)


START = Group("start", "Start and idle", _start, _samples)
