"""How long headrace's event loop is held up: at rest, under load, and while background work goes on.

The broker measures itself when the environment asks for it (LAG_FILE_VARIABLE): a timer every 5 ms,
its lateness counted in a histogram, the histogram written as JSON when the broker stops:

    {"interval_ms": 5.0, "samples": 1234, "max_ms": 3.2, "bounds_ms": [0.1, 0.2, …], "counts": [17, …, 0], "own": {…}}

`counts[i]` holds lags up to `bounds_ms[i]`; one more count at the end holds those above the last bound. `own` is what
the broker can have caused by computing; the rest is others on our cores, or a virtual machine that stands still. For
comparison the same timer runs at the same time in a process that does nothing else (`bench/bare_timer.py`).
Kafka has no such loop, so these cases stand alone.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench import topics
from bench.brokers import Broker, Policy
from bench.cases.latency import paced
from bench.cases.throughput import consume_all, produce_bulk
from bench.clients import Figures
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.proc import idle_cpu_percent
from bench.processes import BenchError
from bench.runner import Bench, Group

LAG_FILE_VARIABLE = "HEADRACE_LOOP_LAG_FILE"
_PACED_RATE = 2_000
_COMPACTED_KEYS = 20_000
_FLUSH_S = 60.0
# Everything that runs in the background, made to run all the time.
_BUSY_BACKGROUND = {"log.retention.check.interval.ms": "500", "log.cleaner.backoff.ms": "500"}
_SMALL_SEGMENTS = {"segment.bytes": str(2**20), "file.delete.delay.ms": "1000"}
_COMPACTED_TOPIC = "compacted"
_TO_BE_COMPACTED = {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0", **_SMALL_SEGMENTS}


def _idle(bench: Bench, broker: Broker) -> None:
    idle_cpu_percent(broker.pids, bench.scale.idle_seconds)


def _steady(bench: Bench, broker: Broker) -> None:
    with bench.topic(broker, 1, Policy.FSYNC) as topic:
        paced(bench, broker, topic, _PACED_RATE)


def _bulk(bench: Bench, broker: Broker) -> None:
    with bench.topic(broker, 12, Policy.FSYNC) as topic:
        produce_bulk(bench, broker, topic, 12, bench.scale.bulk_messages)
        consume_all(bench, broker, topic, 12, bench.scale.bulk_messages)


def _nothing(bench: Bench, broker: Broker) -> None:
    """No log has to be there before."""


def _something_to_compact(bench: Bench, broker: Broker) -> None:
    topics.create(broker.bootstrap, [_COMPACTED_TOPIC], 1, _TO_BE_COMPACTED)
    _fill_with_keys(broker, _COMPACTED_TOPIC, bench.scale.requests * 10)


def _background(bench: Bench, broker: Broker) -> None:
    """Compaction, rolling and retention while records come in at a steady rate."""
    topics.alter(broker.bootstrap, _COMPACTED_TOPIC, {"cleanup.policy": "compact"})
    with bench.topic(broker, 1, Policy.FSYNC, {**_SMALL_SEGMENTS, "retention.bytes": str(2**21)}) as topic:
        paced(bench, broker, topic, _PACED_RATE)


def _fill_with_keys(broker: Broker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "log_level": 0})
    value = b"v" * 100
    for i in range(count):
        while True:
            try:
                producer.produce(topic, value, key=b"key-%d" % (i % _COMPACTED_KEYS))
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(_FLUSH_S):
        raise BenchError(f"topic {topic} was not filled")


Act = Callable[[Bench, Broker], None]
# What is measured, and what is made before it by an earlier life of the broker, which is not.
_SCENARIOS: tuple[tuple[Case, Act, Act], ...] = (
    (Case("lag/idle", "Loop lag, idle", "no client: what the timer and the machine alone cost"), _nothing, _idle),
    (Case("lag/steady", "Loop lag, steady", "100 B at 2,000 messages/s, acks=all after fsync"), _nothing, _steady),
    (Case("lag/bulk", "Loop lag, bulk", "1 MB batches in and out at full speed, both cores busy"), _nothing, _bulk),
    (
        Case(
            "lag/background",
            "Loop lag, background work",
            "compaction, rolling at 1 MiB and retention all the time, 100 B at 2,000 messages/s beside them",
        ),
        _something_to_compact,
        _background,
    ),
)


def _lag(bench: Bench) -> None:
    ours = [kind for kind in bench.kinds if kind is Headrace]
    for case, before, scenario in _SCENARIOS:

        def measure(kind: type[Broker], case: Case = case, before: Act = before, scenario: Act = scenario) -> Figures:
            lag_file = bench.work / f"{case.id.replace('/', '-')}.json"
            with bench.fresh(kind, _BUSY_BACKGROUND) as broker:
                broker.start()
                before(bench, broker)
                broker.stop()
                broker.env[LAG_FILE_VARIABLE] = str(lag_file)
                broker.start()
                with bare_timer(bench) as bare_file:
                    scenario(bench, broker)
                broker.stop()
                return {**read_lags(lag_file), **read_bare_lags(bare_file)}

        bench.alternate(case, ours, measure, bench.repeat_long)


@contextmanager
def bare_timer(bench: Bench) -> Iterator[Path]:
    """Where its histogram is when it has ended."""
    path = bench.work / "bare-timer.json"
    command = [sys.executable, "-m", "bench.bare_timer"]
    process = bench.processes.start(command, log=bench.work / "bare-timer.log", env={LAG_FILE_VARIABLE: str(path)})
    try:
        yield path
    finally:
        bench.processes.stop(process)


def _read(path: Path, writer: str) -> dict[str, Any]:
    if not path.exists():
        raise BenchError(f"{writer} wrote no {LAG_FILE_VARIABLE}")
    histogram: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return histogram


def read_bare_lags(path: Path) -> Figures:
    histogram = _read(path, "the bare timer")
    return {
        "bare_lag_p99": _quantile(histogram, 0.99),
        "bare_lag_p999": _quantile(histogram, 0.999),
        "bare_lag_max": histogram["max_ms"],
    }


def read_lags(path: Path) -> Figures:
    histogram = _read(path, "the broker")
    shares = {"lag_p50": 0.5, "lag_p99": 0.99, "lag_p999": 0.999}
    return {
        **{name: _quantile(histogram, share) for name, share in shares.items()},
        "lag_max": histogram["max_ms"],
        "own_lag_p999": _quantile(histogram["own"], 0.999),
        "own_lag_max": histogram["own"]["max_ms"],
    }


def _quantile(histogram: dict[str, Any], share: float) -> float:
    """The upper bound of the bucket in which the share is reached, never above the longest lag."""
    wanted, seen = share * histogram["samples"], 0
    for bound, count in zip(histogram["bounds_ms"], histogram["counts"], strict=False):
        seen += count
        if seen >= wanted:
            return min(float(bound), float(histogram["max_ms"]))
    return float(histogram["max_ms"])


def _samples(plan: Plan) -> int:
    return len(_SCENARIOS) * plan.repeat_long * (Headrace in plan.kinds)


LAG = Group("lag", "Loop lag of headrace", _lag, _samples)
