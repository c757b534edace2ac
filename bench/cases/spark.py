"""Spark through two doors to one broker: its own Kafka connector, and `format("headrace")`.

Here the columns are the doors: both run against headrace, on the same topic, in turn.
"""

import json
import sys

from bench import tools
from bench.brokers import Broker, Policy
from bench.cases.throughput import produce_bulk
from bench.clients import Figures
from bench.headrace_node import Headrace
from bench.ledger import HEADRACE, KAFKA, Case
from bench.plan import Plan
from bench.proc import CpuMeter
from bench.processes import BenchError
from bench.runner import Bench, Door, Group
from bench.spark_job import WARMING_RUNS

PARTITIONS = 12
JOB_LIMIT_S = 900.0
_DOORS = (Door(KAFKA), Door(HEADRACE))
_WHERE = f"local[2], after {WARMING_RUNS} runs of the same session, headrace as the broker, {PARTITIONS} partitions"
_CASES = {
    "batch": Case("spark/batch", "Spark batch read", f"100 B, all columns of a topic to noop, {_WHERE}"),
    "stream": Case("spark/stream", "Spark streaming read", f"100 B, AvailableNow, 1 M rows a batch, to noop, {_WHERE}"),
    "sink": Case("spark/sink", "Spark sink", f"100 B values, 8 B keys, at least once, acks=all, {_WHERE}"),
}


def _spark(bench: Bench) -> None:
    rows, jars = bench.scale.spark_rows, tools.spark_connector()
    with bench.fresh(Headrace) as broker:
        broker.start()
        with bench.topic(broker, PARTITIONS, Policy.PAGE_CACHE) as filled:
            produce_bulk(bench, broker, filled, PARTITIONS, rows)
            for job in ("batch", "stream"):
                _alternate(bench, broker, job, filled, rows, jars)
        with bench.topic(broker, PARTITIONS, Policy.PAGE_CACHE) as target:
            _alternate(bench, broker, "sink", target, rows // 4, jars)


def _alternate(bench: Bench, broker: Broker, job: str, topic: str, rows: int, jars: str) -> None:
    def measure(door: Door) -> Figures:
        command = [sys.executable, "-m", "bench.spark_job", door.kind, job, broker.bootstrap, topic, str(rows), jars]
        with CpuMeter(broker.pid) as cpu:
            output = bench.run_program(command, JOB_LIMIT_S)
        figures = json.loads(output.splitlines()[-1])
        if figures["rows"] != rows:
            raise BenchError(f"{door.kind} read {figures['rows']} of {rows} rows")
        runs = WARMING_RUNS + 1  # each asked as much of the broker
        return {
            "rate": rows / figures["seconds"],
            "spark_cpu": figures["cpu"] / rows * 1e6,
            "cpu": cpu.seconds / (runs * rows) * 1e6,
        }

    bench.alternate(_CASES[job], _DOORS, measure, bench.repeat_long)


def _samples(plan: Plan) -> int:
    return len(_CASES) * len(_DOORS) * plan.repeat_long


SPARK = Group("spark", "Spark through two doors", _spark, _samples)
