"""LocalBroker, the broker that tests start and stop: how soon it is usable, and what it leaves behind."""

import json
import sys

from bench.brokers import Broker
from bench.clients import Figures
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

_MODES = {"process": "in a process of its own", "in-process": "on a thread of the test's process"}
_TIMEOUT_S = 900.0


def _local(bench: Bench) -> None:
    ours = [kind for kind in bench.kinds if kind is Headrace]
    count = bench.scale.local_brokers
    for mode, where in _MODES.items():
        case = Case(f"local/{mode}", "LocalBroker in memory", f"{count} in a row, {where}, confluent-kafka producer")

        def measure(_: type[Broker], mode: str = mode) -> Figures:
            command = [sys.executable, "-m", "bench.local_brokers", mode, str(count)]
            figures: dict[str, float] = json.loads(bench.run_program(command, _TIMEOUT_S))
            return figures

        bench.alternate(case, ours, measure, 1)


def _samples(plan: Plan) -> int:
    return len(_MODES) * (Headrace in plan.kinds)


LOCAL = Group("local", "LocalBroker", _local, _samples)
