"""What grows with partitions, with connections and with the size of the log."""

import time

from bench import topics
from bench.brokers import Broker, Policy
from bench.cases.policies import plural
from bench.cases.start import first_ack_seconds
from bench.cases.throughput import REQUEST_CONF, consume_all, produce_bulk, rate_and_cpu
from bench.clients import Figures
from bench.ledger import Case
from bench.plan import Plan
from bench.proc import CpuMeter, idle_cpu_percent, resident_mib
from bench.runner import Bench, Group

_TOPIC = "scaling"
# Kafka refuses to create 10,000 partitions in one request, so many partitions are spread over several topics.
_PARTITIONS_A_TOPIC = 1_000
_MESSAGES_A_BATCH = 100
_CONF = {"acks": "all", "batch.num.messages": str(_MESSAGES_A_BATCH), "linger.ms": "5"}
_BYTES_A_MESSAGE = 107  # 100 of value, 7 around it


def _partitions(bench: Bench) -> None:
    for count in bench.scale.partition_counts:
        conditions = "batches of 100 × 100 B to each partition in turn, acks=all, page cache"
        case = Case(f"partitions/{count}", plural(count, "partition"), conditions)

        def measure(kind: type[Broker], count: int = count) -> Figures:
            with bench.fresh(kind) as broker:
                broker.start()
                return _many_partitions(bench, broker, count)

        bench.alternate(case, bench.kinds, measure, bench.repeat_long)


def _many_partitions(bench: Bench, broker: Broker, count: int) -> Figures:
    each = min(count, _PARTITIONS_A_TOPIC)
    names = [f"{_TOPIC}-{i}" for i in range(count // each)]
    start = time.monotonic()
    topics.create(broker.bootstrap, names, each, broker.policies[Policy.PAGE_CACHE])
    create = time.monotonic() - start
    time.sleep(bench.scale.settle_seconds)
    idle_cpu = idle_cpu_percent(broker.pids, bench.scale.idle_seconds)
    keys = {"topics": len(names), "partitions": each, "count": bench.scale.partition_messages}
    with CpuMeter(broker.pid) as cpu:
        figures = bench.clients.load("produce", broker, _TOPIC, _CONF, chunk=_MESSAGES_A_BATCH, **keys)
    produced = rate_and_cpu(figures["acked"], figures["seconds"], cpu)
    with CpuMeter(broker.pid) as cpu:
        figures = bench.clients.load("consume", broker, _TOPIC, {}, **keys)
    consumed = rate_and_cpu(figures["received"], figures["seconds"], cpu)
    rss = resident_mib(broker.pid)
    broker.stop()
    return {
        **produced,
        "consume_rate": consumed["rate"],
        "consume_cpu": consumed["cpu"],
        "create": create,
        "rss": rss,
        "idle_cpu": idle_cpu,
        "restart": first_ack_seconds(bench, broker, names[0]),
    }


def _connections(bench: Bench) -> None:
    for count in bench.scale.connection_counts:
        conditions = "on each one request of one record in flight, acks=all, page cache"
        case = Case(f"connections/{count}", plural(count, "connection"), conditions)

        def measure(kind: type[Broker], count: int = count) -> Figures:
            with bench.fresh(kind) as broker:
                broker.start()
                return _many_connections(bench, broker, count)

        bench.alternate(case, bench.kinds, measure, bench.repeat_long)


def _many_connections(bench: Bench, broker: Broker, count: int) -> Figures:
    requests = max(bench.scale.connection_requests, count)
    topics.create(broker.bootstrap, [_TOPIC], 1, broker.policies[Policy.PAGE_CACHE])
    # The warm-up is by librdkafka, which asks again when a partition just created has no leader yet.
    bench.clients.load("produce", broker, _TOPIC, REQUEST_CONF, count=requests // 2)
    meter = CpuMeter(broker.pid)
    with meter, bench.clients.hold_connections(broker, _TOPIC, count, requests) as held:
        figures = held.figures
        rss = resident_mib(broker.pid)
    latencies = {name: figures[name] for name in ("ack_p50", "ack_p99", "ack_p999")}
    produced = rate_and_cpu(figures["acked"], figures["seconds"], meter)
    return {**produced, **latencies, "connect": figures["connect_seconds"], "rss": rss}


def _log_sizes(bench: Bench) -> None:
    for mib in bench.scale.log_mib:
        case = Case(f"log-size/{mib}", f"A log of {mib:,} MiB", "1 partition, 1 MB batches, acks=all, page cache")

        def measure(kind: type[Broker], mib: int = mib) -> Figures:
            with bench.fresh(kind) as broker:
                broker.start()
                return _long_log(bench, broker, mib)

        bench.alternate(case, bench.kinds, measure, bench.repeat_long)


def _long_log(bench: Bench, broker: Broker, mib: int) -> Figures:
    """Fill a log, append to it and read it; restart it after a crash, then after a clean stop."""
    topics.create(broker.bootstrap, [_TOPIC], 1, broker.policies[Policy.PAGE_CACHE])
    produce_bulk(bench, broker, _TOPIC, 1, mib * 2**20 // _BYTES_A_MESSAGE)
    produced = produce_bulk(bench, broker, _TOPIC, 1, bench.scale.log_messages)
    consumed = consume_all(bench, broker, _TOPIC, 1, bench.scale.log_messages)
    rss = resident_mib(broker.pid)
    broker.kill()
    recovery = first_ack_seconds(bench, broker, _TOPIC)
    broker.stop()
    restart = first_ack_seconds(bench, broker, _TOPIC)
    return {
        **produced,
        "consume_rate": consumed["rate"],
        "consume_cpu": consumed["cpu"],
        "rss": rss,
        "recovery": recovery,
        "restart": restart,
    }


def _long_samples(cases: int, plan: Plan) -> int:
    return cases * plan.repeat_long * len(plan.kinds)


PARTITIONS = Group(
    "partitions",
    "Cost against partitions",
    _partitions,
    lambda plan: _long_samples(len(plan.scale.partition_counts), plan),
)
CONNECTIONS = Group(
    "connections",
    "Cost against connections",
    _connections,
    lambda plan: _long_samples(len(plan.scale.connection_counts), plan),
)
LOG_SIZE = Group(
    "log-size",
    "Cost against the size of the log",
    _log_sizes,
    lambda plan: _long_samples(len(plan.scale.log_mib), plan),
)
