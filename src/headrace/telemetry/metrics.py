"""What a metric is, and how its figures are kept: plain numbers that somebody adds to and a scrape reads.

Nothing here locks: a figure has one writer, the event loop or one thread, and a reader that sees a number a moment old
has lost nothing. A metric's name, kind and labels are fixed here and nowhere else, so that the reference page, the
dashboards and the alert rules can be checked against them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One family of series. Counters end in `_total`, and everything that has a unit names it, in base units."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram's buckets, ascending, without infinity

    def series_names(self) -> tuple[str, ...]:
        """What a query may ask for."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


class Histogram:
    """How often, and for how long in all. Ten bounds cost ten numbers; `add` is a search in C and two additions."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.seconds += seconds * times

    def value(self) -> "Buckets":
        return Buckets(list(self.counts), self.seconds)


class Buckets(NamedTuple):
    """A histogram at one moment: how many fell into each bucket (the last is the rest), and the sum of all."""

    counts: list[int]
    total: float


Value = float | Buckets
Sample = tuple[tuple[str, ...], Value]  # the labels' values in the metric's order


class MetricFamily(NamedTuple):
    metric: Metric
    samples: list[Sample]


def one(metric: Metric, value: Value) -> MetricFamily:
    """A metric without labels."""
    return MetricFamily(metric, [((), value)])


def by_label(metric: Metric, rows: Iterable[tuple[str, Value]]) -> MetricFamily:
    """A metric with one label."""
    return MetricFamily(metric, [((label,), value) for label, value in rows])


def merge(groups: Iterable[Sequence[MetricFamily]]) -> list[MetricFamily]:
    """The families of several processes: those of one name become one, each process's series told apart by a label."""
    merged: dict[str, MetricFamily] = {}
    for family in (family for group in groups for family in group):
        known = merged.get(family.metric.name)
        if known is None:
            merged[family.metric.name] = MetricFamily(family.metric, list(family.samples))
        else:
            known.samples.extend(family.samples)
    return list(merged.values())


def to_document(families: Iterable[MetricFamily]) -> dict[str, Any]:
    """For another process of the same version: what `from_document` reads."""
    return {family.metric.name: [[list(labels), value] for labels, value in family.samples] for family in families}


def from_document(document: dict[str, Any], known: dict[str, Metric]) -> list[MetricFamily]:
    """What this version does not know is left out: its kind and meaning could only be guessed."""
    return [
        MetricFamily(known[name], [(tuple(labels), _value(value)) for labels, value in samples])
        for name, samples in document.items()
        if name in known
    ]


def _value(value: Any) -> Value:
    return Buckets(*value) if isinstance(value, list) else value
