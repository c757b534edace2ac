"""`headrace bench`: measures throughput and latency of a running broker, and prints its settings.

Measures with confluent-kafka in one Python process. With a fast broker that client is the bottleneck; the output states
this. The topic of the measurement is deleted at the end.
"""

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.errors import fail, fail_kafka, failures_told
from headrace.cli.common.exit_codes import examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Json, Timeout
from headrace.cli.common.output import note, print_json, print_table, progress
from headrace.client import admin as cluster
from headrace.client.librdkafka import make_consumer, make_producer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

EPILOG = examples("headrace bench", "headrace bench --messages 1000000 --size 100 --acks all --json")
POLL_EVERY = 2000
CONSUME_BATCH = 10_000


def bench(
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="Number of messages.")] = 200_000,
    size: Annotated[int, typer.Option("--size", min=1, help="Value size in bytes.")] = 100,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions of the topic.")] = 4,
    acks: Annotated[str, typer.Option("--acks", help="all, 1 or 0.")] = "all",
    batch_bytes: Annotated[int, typer.Option("--batch-bytes", min=1, help="batch.size of the producer.")] = 1_000_000,
    linger_ms: Annotated[int, typer.Option("--linger-ms", min=0, help="linger.ms of the producer.")] = 5,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages per second of the latency part.")] = 2000,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="Duration of the latency part; 0: skip.")] = 3.0,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the topic.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Measure a running broker: produce and consume throughput, and latency from produce to acknowledgement.

    Uses one Python client and a topic of its own.
    """
    settings: dict[str, Any] = {
        "acks": acks,
        "enable.idempotence": acks in ("all", "-1"),
        "batch.size": batch_bytes,
        "compression.type": compression,
    }
    topic = f"headrace-bench-{uuid.uuid4().hex[:8]}"
    with failures_told(bootstrap):
        from confluent_kafka.cimpl import NewTopic

        admin = cluster.connect(bootstrap, timeout)
        for future in admin.create_topics([NewTopic(topic, partitions)], request_timeout=timeout).values():
            future.result()
        try:
            filling = settings | {"linger.ms": linger_ms}
            results = {
                "produce": measure_produce(bootstrap, topic, filling, messages, size, timeout),
                "consume": measure_consume(bootstrap, topic, messages, timeout),
            }
            if seconds > 0:
                single = settings | {"linger.ms": 0}
                results["latency"] = measure_latency(bootstrap, topic, single, rate, seconds, size, timeout)
        finally:
            if not keep:
                cluster.outcomes(admin.delete_topics([topic], request_timeout=timeout))
    stated = {"bootstrap": bootstrap, "partitions": partitions, "size": size, "linger.ms": linger_ms} | settings
    if as_json:
        print_json({"settings": stated, "results": results})
    else:
        _show(stated, results, rate)


def measure_produce(
    bootstrap: str, topic: str, settings: dict[str, Any], count: int, size: int, timeout_s: float
) -> dict[str, float]:
    producer = make_producer(bootstrap, settings | {"queue.buffering.max.messages": 500_000})
    tally = _Tally()
    value = bytes(size)
    _warm_up(producer, topic, timeout_s)
    began = time.perf_counter()
    with progress("producing", count) as advance:
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=tally)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % POLL_EVERY == 0:
                producer.poll(0)
                advance(POLL_EVERY)
                tally.stop_if_refused(bootstrap)
        left = producer.flush(timeout_s)
    took = time.perf_counter() - began
    tally.stop_if_refused(bootstrap)
    if left:
        fail(f"{left:,} messages were not acknowledged within {timeout_s:g} s", "raise --timeout")
    return _rates(count, size, took)


def measure_consume(bootstrap: str, topic: str, count: int, timeout_s: float) -> dict[str, float]:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    # Few large fetches, like a consumer that catches up.
    consumer = make_consumer(bootstrap, {"fetch.min.bytes": 100_000, "queued.min.messages": 1_000_000})
    read = size = first = 0
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        began = 0.0  # at the first batch: before it the client connects and looks up offsets
        last = time.perf_counter()
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        with progress("consuming", count) as advance:
            while read < count:
                batch = consumer.consume(CONSUME_BATCH, timeout=0.5)
                good = [message for message in batch if message.error() is None]
                for message in batch:
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        fail_kafka(error.code(), error.str(), bootstrap)
                if good:
                    last = time.perf_counter()
                    began = began or last
                first = first or len(good)
                read += len(good)
                size += sum(len(message) for message in good)
                advance(len(good))
                if time.perf_counter() - last > timeout_s:
                    fail(f"consumed only {read:,} of {count:,} messages", "see the broker's log")
    finally:
        consumer.close()
    # The messages of the first batch were fetched before the clock started. They are not counted.
    return _rates(max(read - first, 1), size // max(read, 1), max(last - began, 1e-6))


def measure_latency(
    bootstrap: str,
    topic: str,
    settings: dict[str, Any],
    rate: int,
    seconds: float,
    size: int,
    timeout_s: float,
) -> dict[str, float]:
    producer = make_producer(bootstrap, settings)
    tally = _Tally()
    value = bytes(size)
    total = max(1, int(rate * seconds))
    _warm_up(producer, topic, timeout_s)
    began = time.perf_counter()
    # No progress bar: its thread would compete with acknowledgements for the GIL.
    for number in range(total):
        due = began + number / rate
        # Waiting in poll() serves acknowledgements as soon as they arrive, so their latency is not overstated.
        while (left := due - time.perf_counter()) > 0:
            producer.poll(min(left, 0.01))
        producer.produce(topic, value, on_delivery=tally.timed(time.perf_counter()))
        producer.poll(0)
    producer.flush(timeout_s)
    tally.stop_if_refused(bootstrap)
    return tally.quantiles_ms() | {"achieved_rate": total / (time.perf_counter() - began)}


def _warm_up(producer: "Producer", topic: str, timeout_s: float) -> None:
    """Sends a record that is not counted: it includes the time to connect and to get a producer ID."""
    producer.produce(topic, b"warm-up")
    producer.flush(timeout_s)


class _Tally:
    """Delivery callback: keeps the first error and, with `timed`, latencies."""

    def __init__(self) -> None:
        self._refused: KafkaError | None = None
        self._times_s: list[float] = []

    def __call__(self, error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            self._refused = self._refused or error

    def timed(self, sent_at: float) -> Any:
        def acknowledged(error: "KafkaError | None", message: "Message") -> None:
            self._times_s.append(time.perf_counter() - sent_at)
            self(error, message)

        return acknowledged

    def stop_if_refused(self, bootstrap: str) -> None:
        if self._refused is not None:
            fail_kafka(self._refused.code(), self._refused.str(), bootstrap)

    def quantiles_ms(self) -> dict[str, float]:
        times = sorted(self._times_s)
        at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
        return {name: times[min(len(times) - 1, int(len(times) * q))] * 1000 for name, q in at.items()}


def _rates(count: int, size: int, seconds: float) -> dict[str, float]:
    return {
        "messages": count,
        "seconds": seconds,
        "messages_per_s": count / seconds,
        "mb_per_s": count * size / seconds / 1e6,
    }


def _show(stated: dict[str, Any], results: dict[str, dict[str, float]], rate: int) -> None:
    note("  ".join(f"{name}={value}" for name, value in stated.items()))
    rows = [
        (name, f"{one['messages_per_s']:,.0f} msg/s", f"{one['mb_per_s']:,.1f} MB/s", f"{one['seconds']:.2f} s")
        for name, one in results.items()
        if "messages_per_s" in one
    ]
    latency = results.get("latency")
    if latency:
        quantiles = "  ".join(f"{name} {latency[name]:.2f} ms" for name in ("p50", "p99", "p99.9"))
        rows.append(("produce to ack", quantiles, f"at {rate:,} msg/s, linger 0", ""))
    print_table(("", "rate", "volume", "time"), rows)
    note("measured with one Python client, which may be the bottleneck")
