"""Families as text, in the two formats that Prometheus reads: 0.0.4, and OpenMetrics for who asks for it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from headrace.telemetry.figures import Buckets, Family, Kind, Metric

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SUFFIX = "_total"


def content_type_for(accept: str) -> str:
    """OpenMetrics if the client likes it at least as much as plain text, and names it."""
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


def render(families: Iterable[Family], content_type: str) -> bytes:
    is_open = content_type == OPENMETRICS
    lines = [line for family in families for line in _lines(family, is_open)]
    if is_open:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def _lines(family: Family, is_open: bool) -> Iterator[str]:
    metric, samples = family
    # OpenMetrics names a counter's family without the suffix that its sample has.
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
    """As OpenMetrics wants bounds: always a float, never `1e-05`."""
    if isinstance(value, int):
        return f"{value}.0" if isinstance(value, bool) else str(value)
    text = repr(value)
    return f"{value:.9f}".rstrip("0") if "e-" in text and abs(value) > 1e-9 else text


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
