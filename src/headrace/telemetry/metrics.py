"""Metric definitions and values: plain numbers that one writer changes and a scrape reads.

There are no locks: a value has one writer, the event loop or one thread, and a reader may get a slightly older value.
A metric's name, kind and labels are defined only here, so that the reference page, the dashboards and the alert rules
can be checked against them.
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
    """Definition of one metric family.

    Names of counters end in `_total`, and names have the base unit of their values.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, ascending, without infinity

    def series_names(self) -> tuple[str, ...]:
        """Returns the names of the family's series."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


class Histogram:
    """A histogram: counts per bucket and a sum.

    Ten bounds cost ten numbers; `add` is a binary search in C and two additions.
    """

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
    """A histogram's values at one time: a count per bucket (the last is the rest), and the sum."""

    counts: list[int]
    total: float


Value = float | Buckets
Sample = tuple[tuple[str, ...], Value]  # label values in the metric's order


class MetricFamily(NamedTuple):
    metric: Metric
    samples: list[Sample]


def one(metric: Metric, value: Value) -> MetricFamily:
    """Returns a family without labels."""
    return MetricFamily(metric, [((), value)])


def by_label(metric: Metric, rows: Iterable[tuple[str, Value]]) -> MetricFamily:
    """Returns a family with one label."""
    return MetricFamily(metric, [((label,), value) for label, value in rows])


def merge(groups: Iterable[Sequence[MetricFamily]]) -> list[MetricFamily]:
    """Merges the families of several processes by name. A label distinguishes each process's series."""
    merged: dict[str, MetricFamily] = {}
    for family in (family for group in groups for family in group):
        known = merged.get(family.metric.name)
        if known is None:
            merged[family.metric.name] = MetricFamily(family.metric, list(family.samples))
        else:
            known.samples.extend(family.samples)
    return list(merged.values())


def to_document(families: Iterable[MetricFamily]) -> dict[str, Any]:
    """Encodes families for another process of the same version: see `from_document`."""
    return {family.metric.name: [[list(labels), value] for labels, value in family.samples] for family in families}


def from_document(document: dict[str, Any], known: dict[str, Metric]) -> list[MetricFamily]:
    """Decodes families. Skips metrics that this version does not define, since their kind and meaning are unknown."""
    return [
        MetricFamily(known[name], [(tuple(labels), _value(value)) for labels, value in samples])
        for name, samples in document.items()
        if name in known
    ]


def _value(value: Any) -> Value:
    return Buckets(*value) if isinstance(value, list) else value
