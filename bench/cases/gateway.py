"""REST beside the broker: single messages beside an empty handler, streams of lines, server-sent events."""

import json
import sys

from bench.brokers import Broker, Policy
from bench.cases.policies import IN_WORDS
from bench.clients import Figures
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

_TIMEOUT_S = 900.0
_ON = "broker on disk, acks=all"
_PACED = (
    "1,000 messages/s, linger 0, acks=all, while 64 connections produce as fast as they can; "
    "broker, REST, both clients share all cores"
)


def _gateway(bench: Bench) -> None:
    scale = bench.scale
    ours = [kind for kind in bench.kinds if kind is Headrace]
    paced = f"{_PACED}; median of {scale.http_pairs} pairs a round"
    cases = {
        "requests": ("REST produce", f"1 message of 100 B a request, 64 connections (wrk), {_ON}", scale.http_seconds),
        "beside": ("A Kafka producer beside REST", f"{paced}, {IN_WORDS[Policy.PAGE_CACHE]}", scale.http_pairs),
        "disk": ("A Kafka producer beside REST", f"{paced}, {IN_WORDS[Policy.FSYNC]}", scale.http_pairs),
        "lines": ("NDJSON", f"{scale.http_lines:,} lines of 100 B with a key, curl, {_ON}", scale.http_lines),
        "events": (
            "Server-sent events",
            f"{scale.http_listeners} streams, each a group of its own",
            scale.http_listeners,
        ),
    }
    for mode, (title, conditions, size) in cases.items():

        def measure(_: type[Broker], mode: str = mode, size: int = size) -> Figures:
            command = [sys.executable, "-m", "bench.gateway_load", mode, str(size)]
            figures: dict[str, float] = json.loads(bench.run_program(command, _TIMEOUT_S))
            return figures

        bench.alternate(Case(f"gateway/{mode}", title, conditions), ours, measure, bench.repeat_long)


def _samples(plan: Plan) -> int:
    return 5 * plan.repeat_long * (Headrace in plan.kinds)


GATEWAY = Group("gateway", "REST", _gateway, _samples)
