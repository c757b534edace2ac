"""What headrace has to reach, as data; and whether a ledger shows it reached. Prints nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.ledger import HEADRACE, METRICS, Ledger


@dataclass(frozen=True, slots=True)
class Target:
    case_id: str
    metric: str
    limit: float
    at_least: bool = False  # else: at most
    is_ratio: bool = True  # to Kafka in the same run; else the figure itself
    is_worst: bool = False  # of all rounds; else the median

    def __str__(self) -> str:
        unit = "×" if self.is_ratio else METRICS[self.metric].unit
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {unit}".rstrip()

    def measured(self, ledger: Ledger) -> float | None:
        if self.is_ratio:
            found = ledger.ratio(self.case_id, self.metric)
        else:
            found = ledger.spread(self.case_id, self.metric, HEADRACE)
        if found is None or not self.is_worst:
            return found.median if found else None
        return found.low if self.at_least else found.high

    def is_met(self, ledger: Ledger) -> bool | None:
        """None: not measured in this run."""
        value = self.measured(ledger)
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


def _all_targets() -> Iterable[Target]:
    for partitions in ("1p", "12p"):
        yield Target(f"produce/{partitions}/page-cache", "rate", 1.0, at_least=True)
        yield Target(f"produce/{partitions}/page-cache", "cpu", 0.5)
    for partitions in ("1p", "12p"):
        yield Target(f"produce/{partitions}/fsync", "rate", 1.0, at_least=True)
    for policy in ("page-cache", "fsync"):
        yield Target(f"requests/{policy}", "rate", 2.5, at_least=True)
    for partitions in ("1p", "12p"):
        yield Target(f"consume/{partitions}/first", "rate", 1.0, at_least=True)
        yield Target(f"consume/{partitions}/first", "cpu", 0.5)
        yield Target(f"consume/{partitions}/again", "rate", 1.0, at_least=True)
        yield Target(f"consume/{partitions}/again", "cpu", 0.5)
    for policy in ("page-cache", "fsync"):
        yield Target(f"latency/2000/{policy}", "ack_p50", 1.0)
        yield Target(f"latency/2000/{policy}", "ack_p99", 1.0)
    for policy in ("page-cache", "fsync"):
        yield Target(f"latency/10000/{policy}", "ack_p50", 0.1)
    yield Target("start/fresh", "first_ack", 0.1)
    yield Target("start/fresh", "rss", 0.2)
    yield Target("start/fresh", "idle_cpu", 1.0, is_ratio=False)
    yield Target("memory/after-load", "rss", 0.2)
    yield Target("cluster/produce/12p/page-cache", "rate", 1.0, at_least=True)
    yield Target("cluster/latency/2000/page-cache", "ack_p99", 1.0)
    yield Target("cluster/start", "first_ack", 0.2)
    yield Target("cluster/start", "rss", 0.2)
    yield Target("cluster/start", "pss", 0.2)
    yield Target("cluster/failover", "pause", 3_000.0, is_ratio=False)
    for event in ("killed", "paused"):
        yield Target(f"failover/{event}", "pause", 1_000.0, is_ratio=False, is_worst=True)
        yield Target(f"failover/{event}/long-timers", "pause", 3_000.0, is_ratio=False, is_worst=True)
    yield Target("cluster/rolling", "pause", 1_000.0, is_ratio=False)
    # Background work may hold up the loop by 5 ms and never more, so it is the longest lag that counts.
    yield Target("lag/background", "own_lag_max", 5.0, is_ratio=False)
    for work in ("produce", "roll", "create", "delete", "delete-records", "failover"):
        yield Target(f"slow-disk/{work}", "loop_syncs", 0.0, is_ratio=False, is_worst=True)
    for policy in ("page-cache", "fsync"):
        yield Target(f"commits/offered/{policy}", "commits", 9_900.0, at_least=True, is_ratio=False)
        yield Target(f"commits/most/{policy}", "commits", 10_000.0, at_least=True, is_ratio=False)
        yield Target(f"commits/most/{policy}", "commits", 1.0, at_least=True)
    yield Target("groups/heartbeats", "group_cpu", 1.0)
    for protocol in ("classic", "consumer"):
        yield Target(f"rebalance/{protocol}", "stable_again", 1.0)
    yield Target("replay/commits", "all_offsets", 10.0, is_ratio=False)
    yield Target("replay/commits", "all_offsets", 1.0)
    # Here the ratio is to Spark's own connector, which reads and writes the same topics.
    for job, limit in (("batch", 3.0), ("stream", 2.0), ("sink", 1.0)):
        yield Target(f"spark/{job}", "rate", limit, at_least=True)
    for kind in ("produce", "consume"):
        yield Target(f"grpc/{kind}", "rate", 100_000.0, at_least=True, is_ratio=False)
    yield Target("local/cluster", "enter_to_ack", 1_500.0, is_ratio=False)
    yield Target("local/cluster-etcd", "enter_to_ack", 4_000.0, is_ratio=False)
    for mode in ("process", "in-process"):
        yield Target(f"local/{mode}", "enter_to_ack", 300.0, is_ratio=False)
    for mode in ("process", "in-process", "cluster", "cluster-etcd"):
        yield Target(f"local/{mode}", "leaked", 0.0, is_ratio=False)
    yield Target("gateway/requests", "empty_share", 0.5, at_least=True, is_ratio=False)
    for wait in ("beside", "disk"):
        yield Target(f"gateway/{wait}", "beside_ratio", 1.5, is_ratio=False)
    for way in ("lines_up", "lines_down"):
        yield Target("gateway/lines", way, 200_000.0, at_least=True, is_ratio=False)
    yield Target("gateway/events", "events_missed", 0.0, is_ratio=False)


TARGETS: tuple[Target, ...] = tuple(_all_targets())


def target_for(case_id: str, metric: str) -> Target | None:
    return next((target for target in TARGETS if (target.case_id, target.metric) == (case_id, metric)), None)
