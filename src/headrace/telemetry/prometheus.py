"""Prometheus text formats: writes 0.0.4, and OpenMetrics for clients that request it; parses 0.0.4."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from headrace.telemetry.metrics import Buckets, Kind, Metric, MetricFamily

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SUFFIX = "_total"


def content_type_for(accept: str) -> str:
    """Returns the OpenMetrics content type if the client accepts it with at least the preference of plain text."""
    open_metrics, text = 0.0, 0.0
    for item in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        quality = _quality(parameters)
        if kind == "application/openmetrics-text":
            open_metrics = max(open_metrics, quality)
        elif kind in ("text/plain", "text/*"):
            text = max(text, quality)
    return OPENMETRICS if open_metrics and open_metrics >= text else TEXT


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def render(families: Iterable[MetricFamily], content_type: str) -> bytes:
    is_open = content_type == OPENMETRICS
    lines = [line for family in families for line in _lines(family, is_open)]
    if is_open:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def _lines(family: MetricFamily, is_open: bool) -> Iterator[str]:
    metric, samples = family
    # In OpenMetrics, a counter's family has no suffix; its samples have.
    title = metric.name.removesuffix(_SUFFIX) if is_open and metric.kind is Kind.COUNTER else metric.name
    yield f"# HELP {title} {_escape_help(metric.help)}"
    yield f"# TYPE {title} {metric.kind}"
    for labels, value in samples:
        pairs = list(zip(metric.labels, labels, strict=True))
        if isinstance(value, Buckets):
            yield from _histogram_lines(metric, pairs, value)
        else:
            yield f"{metric.name}{_braces(pairs)} {_number(value)}"


def _histogram_lines(metric: Metric, pairs: list[tuple[str, str]], value: Buckets) -> Iterator[str]:
    bounds = [*(_number(bound) for bound in metric.bounds), "+Inf"]
    cumulated = list(accumulate(value.counts))
    for bound, count in zip(bounds, cumulated, strict=True):
        yield f"{metric.name}_bucket{_braces([*pairs, ('le', bound)])} {count}"
    yield f"{metric.name}_sum{_braces(pairs)} {_number(value.total)}"
    yield f"{metric.name}_count{_braces(pairs)} {cumulated[-1]}"


def _braces(pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


def _number(value: float) -> str:
    """Formats a number for OpenMetrics bounds: always a float, never `1e-05`."""
    if isinstance(value, int):
        return f"{value}.0" if isinstance(value, bool) else str(value)
    text = repr(value)
    return f"{value:.9f}".rstrip("0") if "e-" in text and abs(value) > 1e-9 else text


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


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
    """Parses text in format 0.0.4. Skips other lines."""
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
    """Two scrapes of one node, `seconds` apart."""

    def __init__(self, before: Scrape, after: Scrape, seconds: float) -> None:
        self._before, self._after, self.seconds = before, after, seconds

    def now(self, name: str, **labels: str) -> float:
        """Returns the sum of all series with this name and these labels in the second scrape."""
        return sum(value for _, value in self._matching(name, labels))

    def rates(self, name: str, **labels: str) -> dict[Series, float]:
        """Returns rates per second, by series. A counter that decreased was reset by a restart of its process."""
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
        """Returns the upper bound of the quantile's bucket; 0 without observations in the interval."""
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
