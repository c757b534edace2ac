"""Reads what /metrics says, and tells what happened between two readings."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}

Labels = tuple[tuple[str, str], ...]


class Series(NamedTuple):
    name: str
    labels: Labels

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


Scrape = Mapping[Series, float]


def parse(text: str) -> Scrape:
    """Of text in format 0.0.4; lines that are none of it are passed over."""
    found: dict[Series, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            labels = tuple((name, _plain(value)) for name, value in _LABEL.findall(match[2] or ""))
            found[Series(match[1], labels)] = float(match[3])
    return found


def _plain(value: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)


class Interval:
    """Two scrapes of the same node, `seconds` apart."""

    def __init__(self, before: Scrape, after: Scrape, seconds: float) -> None:
        self._before, self._after, self.seconds = before, after, seconds

    def now(self, name: str, **labels: str) -> float:
        """The sum of all series of that name with these labels."""
        return sum(value for _, value in self._matching(name, labels))

    def rates(self, name: str, **labels: str) -> dict[Series, float]:
        """By series, a second. A counter that went back began anew: its process was restarted."""
        return {
            series: (value - before if (before := self._before.get(series, 0.0)) <= value else value) / self.seconds
            for series, value in self._matching(name, labels)
        }

    def rate(self, name: str, **labels: str) -> float:
        return sum(self.rates(name, **labels).values())

    def values(self, name: str, **labels: str) -> dict[Series, float]:
        return dict(self._matching(name, labels))

    def growth(self, series: Series) -> float:
        return self._after.get(series, 0.0) - self._before.get(series, 0.0)

    def quantile(self, q: float, metric: str, **labels: str) -> float:
        """The upper bound of the bucket in which it lies; 0 if nothing was observed meanwhile."""
        buckets: dict[float, float] = {}
        for series, rate in self.rates(f"{metric}_bucket", **labels).items():
            bound = float(series.label("le"))
            buckets[bound] = buckets.get(bound, 0.0) + rate
        bounds = sorted(buckets)
        if not bounds or not buckets[bounds[-1]]:
            return 0.0
        wanted = q * buckets[bounds[-1]]
        reached = next(bound for bound in bounds if buckets[bound] >= wanted)
        return reached if reached != float("inf") else bounds[-2]

    def _matching(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Series, float]]:
        for series, value in self._after.items():
            if series.name == name and labels.items() <= dict(series.labels).items():
                yield series, value
