"""As fast as the broker takes and gives: large batches in, everything out again, and one record a request."""

from collections.abc import Callable
from functools import partial

from bench.brokers import Broker, Policy, Served
from bench.cases.policies import IN_WORDS, plural
from bench.clients import Figures
from bench.ledger import Case
from bench.plan import Plan
from bench.proc import CpuMeter, resident_mib
from bench.runner import Bench, Group

PARTITIONS = (1, 12)
MESSAGES_A_BATCH = 9_000  # of 100 bytes each, with some 7 bytes around every record: just below 1 MB
BULK_CONF = {
    "acks": "all",
    "batch.size": "1000000",
    "batch.num.messages": str(MESSAGES_A_BATCH),
    "linger.ms": "50",
}
# librdkafka stops asking when it has read so far ahead, for up to a second: the quicker the broker, the sooner.
CONSUME_CONF = {"queued.min.messages": "10000000", "queued.max.messages.kbytes": "2097151"}
REQUEST_CONF = {
    "acks": "all",
    "batch.num.messages": "1",
    "linger.ms": "0",
    "max.in.flight.requests.per.connection": "5",
}


def produce_bulk(bench: Bench, broker: Served, topic: str, partitions: int, count: int) -> Figures:
    """One bulk produce; each partition gets whole batches in its turn."""
    with CpuMeter(*broker.pids) as cpu:
        figures = bench.clients.load(
            "produce", broker, topic, BULK_CONF, partitions=partitions, count=count, chunk=MESSAGES_A_BATCH
        )
    return rate_and_cpu(figures["acked"], figures["seconds"], cpu)


def consume_all(bench: Bench, broker: Served, topic: str, partitions: int, count: int) -> Figures:
    with CpuMeter(*broker.pids) as cpu:
        figures = bench.clients.load("consume", broker, topic, CONSUME_CONF, partitions=partitions, count=count)
    return rate_and_cpu(figures["received"], figures["seconds"], cpu)


def rate_and_cpu(messages: float, seconds: float, cpu: CpuMeter) -> Figures:
    return {"rate": messages / seconds, "cpu": cpu.seconds / messages * 1e6}


def _produce(bench: Bench) -> None:
    for policy in Policy:
        for partitions in PARTITIONS:
            conditions = f"100 B, 1 MB batches, acks=all, {plural(partitions, 'partition')}, {IN_WORDS[policy]}"
            case = Case(f"produce/{partitions}p/{policy.value}", "Produce", conditions)

            def measure(broker: Broker, partitions: int = partitions, policy: Policy = policy) -> Figures:
                with bench.topic(broker, partitions, policy) as topic:
                    return produce_bulk(bench, broker, topic, partitions, bench.scale.bulk_messages)

            bench.alternate(case, bench.pair(), measure, bench.repeat)


def _consume(bench: Bench) -> None:
    """By brokers that were just started, and by brokers that have done it before: a JVM compiles what it repeats."""

    def measure(broker: Broker, partitions: int) -> Figures:
        count = bench.scale.bulk_messages
        with bench.topic(broker, partitions, Policy.PAGE_CACHE) as topic:
            produce_bulk(bench, broker, topic, partitions, count)
            return consume_all(bench, broker, topic, partitions, count)

    def measure_fresh(kind: type[Broker], partitions: int) -> Figures:
        with bench.fresh(kind) as broker:
            broker.start()
            return measure(broker, partitions)

    for partitions in PARTITIONS:
        first = Case(f"consume/{partitions}p/first", "Consume", f"{_consumed(partitions)}, by a broker just started")
        bench.alternate(first, bench.kinds, partial(measure_fresh, partitions=partitions), bench.repeat)
    for partitions in PARTITIONS:
        again = Case(f"consume/{partitions}p/again", "Consume", f"{_consumed(partitions)}, by one that did it before")
        bench.alternate(again, bench.pair(), partial(measure, partitions=partitions), bench.repeat)


def _consumed(partitions: int) -> str:
    return f"100 B, in 1 MB batches, from the start, {plural(partitions, 'partition')}, page cache warm"


def _requests(bench: Bench) -> None:
    for policy in Policy:
        conditions = f"100 B, one record a request, 5 in flight, acks=all, 1 partition, {IN_WORDS[policy]}"
        case = Case(f"requests/{policy.value}", "One record a request", conditions)

        # An fsync for each request, as Kafka does it, takes milliseconds on an ordinary disk.
        count = bench.scale.requests // (4 if policy is Policy.FSYNC else 1)

        def measure(broker: Broker, policy: Policy = policy, count: int = count) -> Figures:
            with bench.topic(broker, 1, policy) as topic, CpuMeter(broker.pid) as cpu:
                figures = bench.clients.load("produce", broker, topic, REQUEST_CONF, count=count)
            return rate_and_cpu(figures["acked"], figures["seconds"], cpu)

        bench.alternate(case, bench.pair(), measure, bench.repeat)


def _memory(bench: Bench) -> None:
    case = Case("memory/after-load", "Memory after load", "after bulk produce and consume, 12 partitions")

    def measure(broker: Broker) -> Figures:
        with bench.topic(broker, PARTITIONS[-1], Policy.PAGE_CACHE) as topic:
            produce_bulk(bench, broker, topic, PARTITIONS[-1], bench.scale.bulk_messages)
            consume_all(bench, broker, topic, PARTITIONS[-1], bench.scale.bulk_messages)
        return {"rss": resident_mib(broker.pid)}

    bench.alternate(case, bench.pair(), measure, 1)


def _rounds(cases: int) -> Callable[[Plan], int]:
    return lambda plan: cases * plan.repeat * len(plan.kinds)


PRODUCE = Group("produce", "Produce", _produce, _rounds(len(PARTITIONS) * len(Policy)), on_pair=True)
CONSUME = Group("consume", "Consume", _consume, _rounds(2 * len(PARTITIONS)), on_pair=True)
REQUESTS = Group("requests", "One record a request", _requests, _rounds(len(Policy)), on_pair=True)
MEMORY = Group("memory", "Memory after load", _memory, lambda plan: len(plan.kinds), on_pair=True)
