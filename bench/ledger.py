"""Every figure of a run, by case, metric, broker and round; medians, spreads, paired ratios. Pure.

The machine's speed drifts from minute to minute. A ratio is therefore formed within each round, where the two
brokers ran one after the other, and the median of those ratios is reported, with the lowest and the highest.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HEADRACE, KAFKA = "headrace", "kafka"


COMMAND = "command"  # the fact that tells how a run was begun; a page made of several tells all of them


@dataclass(frozen=True, slots=True)
class Metric:
    label: str
    unit: str
    higher_is_better: bool = False


METRICS: Mapping[str, Metric] = {
    "rate": Metric("messages/s", "", higher_is_better=True),
    "cpu": Metric("broker CPU per million messages", "s"),
    "spark_cpu": Metric("Spark's CPU per million rows", "s"),
    "ack_p50": Metric("produce to ack, p50", "ms"),
    "ack_p99": Metric("produce to ack, p99", "ms"),
    "ack_p999": Metric("produce to ack, p99.9", "ms"),
    "receive_p50": Metric("produce to consume, p50", "ms"),
    "receive_p99": Metric("produce to consume, p99", "ms"),
    "receive_p999": Metric("produce to consume, p99.9", "ms"),
    "pause": Metric("longest time between two acks", "ms"),
    "consume_rate": Metric("consumed messages/s", "", higher_is_better=True),
    "consume_cpu": Metric("broker CPU per million consumed", "s"),
    "first_ack": Metric("start to first acked produce", "s"),
    "restart": Metric("clean restart to first acked produce", "s"),
    "recovery": Metric("restart after kill -9 to first acked produce", "s"),
    "create": Metric("creating the topics", "s"),
    "connect": Metric("opening the connections", "s"),
    "rss": Metric("memory (RSS)", "MiB"),
    "pss": Metric("memory (PSS: shared pages counted once)", "MiB"),
    "idle_cpu": Metric("idle CPU", "%"),
    "lag_p50": Metric("loop lag, p50", "ms"),
    "lag_p99": Metric("loop lag, p99", "ms"),
    "lag_p999": Metric("loop lag, p99.9", "ms"),
    "lag_max": Metric("loop lag, longest", "ms"),
    "own_lag_p999": Metric("loop lag by our own computing, p99.9", "ms"),
    "own_lag_max": Metric("loop lag by our own computing, longest", "ms"),
    "bare_lag_p99": Metric("the same timer in a process that does nothing, p99", "ms"),
    "bare_lag_p999": Metric("the same timer in a process that does nothing, p99.9", "ms"),
    "bare_lag_max": Metric("the same timer in a process that does nothing, longest", "ms"),
    "commits": Metric("offset commits/s", "", higher_is_better=True),
    "commit_cpu": Metric("broker CPU per million commits", "s"),
    "commit_p50": Metric("commit to answer, p50", "ms"),
    "commit_p99": Metric("commit to answer, p99", "ms"),
    "heartbeats": Metric("heartbeats/s", "", higher_is_better=True),
    "group_cpu": Metric("broker CPU", "% of a core"),
    "stable": Metric("first join to stable", "s"),
    "stable_again": Metric("one more member: its join to stable", "s"),
    "filled": Metric("filling, commits/s", "", higher_is_better=True),
    "first_offset": Metric("restart to the first group's offset", "s"),
    "all_offsets": Metric("restart to every group's offset", "s"),
    "enter_to_ack": Metric("enter to first acked produce", "ms"),
    "enter_to_ack_max": Metric("enter to first acked produce, slowest", "ms"),
    "http_rate": Metric("REST requests/s", "", higher_is_better=True),
    "http_p99": Metric("REST request, p99", "ms"),
    "empty_rate": Metric("empty FastAPI handler, requests/s", "", higher_is_better=True),
    "empty_share": Metric("REST produce ÷ empty FastAPI handler", "×", higher_is_better=True),
    "alone_p99": Metric("produce to ack without REST load, p99", "ms"),
    "beside_p99": Metric("produce to ack beside REST load, p99", "ms"),
    "beside_ratio": Metric("produce to ack p99, beside REST load ÷ without", "×"),
    "empty_ratio": Metric("produce to ack p99, beside the same load on an empty handler ÷ without", "×"),
    "bare_ratio": Metric("a bare append and fdatasync, p99, beside REST load ÷ without", "×"),
    "lines_up": Metric("lines/s up", "", higher_is_better=True),
    "lines_up_cpu": Metric("gateway CPU per million lines up", "s"),
    "lines_down_cpu": Metric("gateway CPU per million lines down", "s"),
    "lines_down": Metric("lines/s down", "", higher_is_better=True),
    "event_p50": Metric("produce request to event, p50", "ms"),
    "event_p99": Metric("produce request to event, p99", "ms"),
    "events_missed": Metric("events that did not arrive", ""),
    "loop_syncs": Metric("syncs on the event loop", ""),
    "leaked": Metric("leaked descriptors, threads, processes, files", ""),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing measured under stated conditions."""

    id: str  # "produce/12p/page-cache": the part before the first slash names its group
    title: str
    conditions: str

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]


class Spread(NamedTuple):
    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread | None:
    known = sorted(values)
    return Spread(median(known), known[0], known[-1]) if known else None


@dataclass(slots=True)
class Ledger:
    cases: dict[str, Case] = field(default_factory=dict)
    # case id → metric → broker → round → value
    samples: dict[str, dict[str, dict[str, dict[int, float]]]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)  # case id → broker → the last reason
    skips: dict[str, dict[str, str]] = field(default_factory=dict)  # the same for what a broker does not serve
    facts: dict[str, str] = field(default_factory=dict)  # the machine and the settings of the run

    def record(self, case: Case, broker: str, round_: int, figures: Mapping[str, float]) -> None:
        self.cases[case.id] = case
        for metric, value in figures.items():
            assert metric in METRICS, f"unknown metric {metric}"
            self.samples.setdefault(case.id, {}).setdefault(metric, {}).setdefault(broker, {})[round_] = value

    def fail(self, case: Case, broker: str, reason: str) -> None:
        self.cases[case.id] = case
        self.failures.setdefault(case.id, {})[broker] = reason

    def skip(self, case: Case, broker: str, reason: str) -> None:
        self.cases[case.id] = case
        self.skips.setdefault(case.id, {})[broker] = reason

    def metrics(self, case_id: str) -> list[str]:
        return [metric for metric in METRICS if metric in self.samples.get(case_id, {})]

    def values(self, case_id: str, metric: str, broker: str) -> dict[int, float]:
        return self.samples.get(case_id, {}).get(metric, {}).get(broker, {})

    def spread(self, case_id: str, metric: str, broker: str) -> Spread | None:
        return spread(self.values(case_id, metric, broker).values())

    def ratio(self, case_id: str, metric: str) -> Spread | None:
        """headrace divided by Kafka, round by round."""
        ours, theirs = (self.values(case_id, metric, broker) for broker in (HEADRACE, KAFKA))
        return spread(ours[round_] / theirs[round_] for round_ in ours.keys() & theirs.keys() if theirs[round_])

    @classmethod
    def of(cls, runs: Iterable["Ledger"]) -> "Ledger":
        """Several runs as one: later ones win."""
        together = cls()
        for run in runs:
            together.replace_with(run)
        return together

    def replace_with(self, newer: "Ledger") -> None:
        """Take over every case that the other run measured."""
        for case_id, case in newer.cases.items():
            self.cases[case_id] = case
            self.samples[case_id] = newer.samples.get(case_id, {})
            self.failures.pop(case_id, None)
            self.skips.pop(case_id, None)
        self.failures.update(newer.failures)
        self.skips.update(newer.skips)
        commands = [ledger.facts[COMMAND] for ledger in (self, newer) if COMMAND in ledger.facts]
        self.facts = {**newer.facts, **({COMMAND: "; ".join(commands)} if commands else {})}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        raw: dict[str, Any] = json.loads(path.read_text())
        ledger = cls(failures=raw["failures"], skips=raw["skips"], facts=raw["facts"])
        ledger.cases = {case_id: Case(**case) for case_id, case in raw["cases"].items()}
        for case_id, metrics in raw["samples"].items():
            ledger.samples[case_id] = {
                metric: {
                    broker: {int(round_): value for round_, value in rounds.items()}
                    for broker, rounds in brokers.items()
                }
                for metric, brokers in metrics.items()
            }
        return ledger
