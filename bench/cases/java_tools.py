"""The same bulk loads by Kafka's own tools, ProducerPerformance and ConsumerPerformance."""

from bench import topics
from bench.brokers import Broker, Policy
from bench.cases.throughput import produce_bulk, rate_and_cpu
from bench.clients import Figures
from bench.ledger import Case
from bench.plan import Plan
from bench.proc import CpuMeter
from bench.processes import NotServed
from bench.runner import Bench, Group

_CONF = {"acks": "all", "batch.size": "1000000", "linger.ms": "50", "buffer.memory": "67108864"}
_PRODUCE = Case(
    "java/produce",
    "ProducerPerformance",
    "Java client, idempotent, 100 B, 1 MB batches, acks=all, 1 partition, acked from the page cache",
)
_CONSUME = Case("java/consume", "ConsumerPerformance", "Java client in a group, 100 B, from the start, 1 partition")


def _java(bench: Bench) -> None:
    records = bench.scale.java_records

    def produce(broker: Broker) -> Figures:
        with bench.topic(broker, 1, Policy.PAGE_CACHE) as topic, CpuMeter(broker.pid) as cpu:
            rate = bench.clients.java_produce(broker, topic, records, _CONF)
        return rate_and_cpu(records, records / rate, cpu)

    def consume(broker: Broker) -> Figures:
        if not topics.serves(broker.bootstrap, topics.JOIN_GROUP):
            raise NotServed("ConsumerPerformance joins a consumer group, which this broker does not serve yet")
        with bench.topic(broker, 1, Policy.PAGE_CACHE) as topic:
            produce_bulk(bench, broker, topic, 1, records)
            with CpuMeter(broker.pid) as cpu:
                rate = bench.clients.java_consume(broker, topic, records)
        return rate_and_cpu(records, records / rate, cpu)

    bench.alternate(_PRODUCE, bench.pair(), produce, bench.repeat)
    bench.alternate(_CONSUME, bench.pair(), consume, bench.repeat)


def _samples(plan: Plan) -> int:
    return 2 * plan.repeat * len(plan.kinds)


JAVA = Group("java", "Kafka's own tools", _java, _samples, on_pair=True)
