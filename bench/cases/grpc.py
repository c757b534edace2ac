"""gRPC: one client, one stream, records in and records out, with the node that serves it on the same cores."""

import json
import sys

from bench.brokers import Broker
from bench.clients import Figures
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

_KINDS = {"produce": "StreamProduce, acks=all on disk", "consume": "StreamConsume as the member of a group"}
_TIMEOUT_S = 900.0


def _grpc(bench: Bench) -> None:
    ours = [kind for kind in bench.kinds if kind is Headrace]
    count = bench.scale.grpc_messages
    for kind, what in _KINDS.items():
        workload = f"{count:,} messages of 100 bytes with keys, 1,000 a request, 4 partitions, a Python client; {what}"
        case = Case(f"grpc/{kind}", f"gRPC stream, {kind}", workload)

        def measure(_: type[Broker], kind: str = kind) -> Figures:
            command = [sys.executable, "-m", "bench.grpc_streams", kind, str(count)]
            figures: dict[str, float] = json.loads(bench.run_program(command, _TIMEOUT_S))
            return figures

        bench.alternate(case, ours, measure, bench.repeat_long)


def _samples(plan: Plan) -> int:
    return len(_KINDS) * plan.repeat_long * (Headrace in plan.kinds)


GRPC = Group("grpc", "gRPC streams", _grpc, _samples)
