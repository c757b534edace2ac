"""LocalBroker and LocalCluster, which tests start and stop: how soon they are usable, and what they leave behind."""

import json
import sys

from bench.brokers import Broker
from bench.clients import Figures
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

_MODES = {
    "process": ("LocalBroker in memory", "in a process of its own"),
    "in-process": ("LocalBroker in memory", "on a thread of the test's process"),
    "cluster": ("LocalCluster(3) in memory", "topics with 3 replicas, embedded metadata shared by the brokers"),
    "cluster-etcd": ("LocalCluster(3) in memory", "topics with 3 replicas, three members of etcd"),
}
_TIMEOUT_S = 900.0


def _local(bench: Bench) -> None:
    ours = [kind for kind in bench.kinds if kind is Headrace]
    for mode, (title, where) in _MODES.items():
        count = bench.scale.local_clusters if mode.startswith("cluster") else bench.scale.local_brokers
        case = Case(f"local/{mode}", title, f"{count} in a row, {where}, confluent-kafka producer")

        def measure(_: type[Broker], mode: str = mode, count: int = count) -> Figures:
            command = [sys.executable, "-m", "bench.local_brokers", mode, str(count)]
            figures: dict[str, float] = json.loads(bench.run_program(command, _TIMEOUT_S))
            return figures

        bench.alternate(case, ours, measure, 1)


def _samples(plan: Plan) -> int:
    return len(_MODES) * (Headrace in plan.kinds)


LOCAL = Group("local", "LocalBroker and LocalCluster", _local, _samples)
