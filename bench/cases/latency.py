"""How long a single record takes at a steady rate: to its ack, and to a consumer that waits for it."""

from bench.brokers import Broker, Policy, Served
from bench.cases.policies import IN_WORDS
from bench.clients import Figures
from bench.ledger import Case
from bench.plan import Plan
from bench.runner import Bench, Group

RATES = (2_000, 10_000)
CONF = {"acks": "all", "linger.ms": "0"}
_MESSAGES_MAX = 75_000  # a broker that cannot keep up takes many times as long as the sending did
_WARM_UP_SHARE = 10  # the first tenth of the messages is sent and not counted
PERCENTILES = ("p50", "p99", "p999")


def paced(bench: Bench, broker: Served, topic: str, rate: int) -> Figures:
    count = min(rate * bench.scale.latency_seconds, _MESSAGES_MAX)
    return bench.clients.load("latency", broker, topic, CONF, count=count, rate=rate, skip=count // _WARM_UP_SHARE)


def _latency(bench: Bench) -> None:
    for rate in RATES:
        for policy in Policy:
            conditions = f"100 B at {rate:,} messages/s, linger 0, acks=all, 1 partition, {IN_WORDS[policy]}"
            case = Case(f"latency/{rate}/{policy.value}", f"Latency at {rate:,} messages/s", conditions)

            def measure(broker: Broker, rate: int = rate, policy: Policy = policy) -> Figures:
                with bench.topic(broker, 1, policy) as topic:
                    figures = paced(bench, broker, topic, rate)
                return {f"{way}_{p}": figures[f"{way}_{p}"] for way in ("ack", "receive") for p in PERCENTILES}

            bench.alternate(case, bench.pair(), measure, bench.repeat)


def _samples(plan: Plan) -> int:
    return len(RATES) * len(Policy) * plan.repeat * len(plan.kinds)


LATENCY = Group("latency", "Latency at a fixed rate", _latency, _samples, on_pair=True)
