"""The two pictures of the page, as plain SVG: ratios to Kafka, and how cost grows. Pure."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import ceil, floor, log10

from bench.ledger import HEADRACE, KAFKA, METRICS, Ledger
from bench.quantity import number
from bench.targets import TARGETS, Target

MET, NOT_MET, OURS, PEER, INK, FAINT = "#1f77b4", "#d62728", "#1f77b4", "#8c8c8c", "#222222", "#d9d9d9"
_WIDTH = 920
_ROW, _LABEL, _TOP = 24, 430, 60
_PANEL_WIDTH, _PANEL_HEIGHT, _GAP = 270, 150, 40

# Panel: group, metric, title.
_PANELS = (
    ("partitions", "cpu", "broker CPU s per million messages"),
    ("partitions", "rss", "memory, MiB"),
    ("partitions", "restart", "clean restart to first ack, s"),
    ("connections", "rate", "requests/s"),
    ("connections", "ack_p99", "produce to ack p99, ms"),
    ("connections", "rss", "memory, MiB"),
    ("log-size", "cpu", "broker CPU s per million messages"),
    ("log-size", "recovery", "restart after kill -9, s"),
    ("log-size", "restart", "clean restart, s"),
)
_AXIS_NAME = {"partitions": "partitions", "connections": "connections", "log-size": "MiB of log"}


def ratios(ledger: Ledger) -> str:
    """One bar for each target that is a ratio, on a logarithmic axis with Kafka at 1."""
    shown = [target for target in TARGETS if target.is_ratio and target.measured(ledger)]
    decades = _decades([1.0, *(value for target in shown if (value := target.measured(ledger)))])
    height = _TOP + _ROW * len(shown) + 40

    def x(value: float) -> float:
        return _LABEL + (_WIDTH - _LABEL - 70) * (log10(value) - decades[0]) / (decades[1] - decades[0])

    parts = [_text(12, 24, "headrace ÷ Apache Kafka 4.3, log scale; black tick: target; blue: target met", size=15)]
    for power in range(decades[0], decades[1] + 1):
        at = x(10**power)
        parts.append(_line(at, _TOP - 10, at, height - 30, PEER if power == 0 else FAINT))
        parts.append(_text(at, height - 14, f"{10**power:g} ×", anchor="middle"))
    for i, target in enumerate(shown):
        parts += _ratio_bar(ledger, target, _TOP + _ROW * i, x)
    return _svg(_WIDTH, height, parts)


def _ratio_bar(ledger: Ledger, target: Target, y: float, x: Callable[[float], float]) -> Iterable[str]:
    value = target.measured(ledger)
    assert value is not None, "only measured targets are shown"
    left, right = sorted((x(1.0), x(value)))
    label = f"{target.case_id}: {METRICS[target.metric].label}"
    yield _text(_LABEL - 8, y + 13, label, anchor="end")
    yield _rect(left, y + 2, max(1.0, right - left), _ROW - 8, fill=MET if target.is_met(ledger) else NOT_MET)
    yield _text(right + 6, y + 13, f"{number(value)} ×")
    tick = x(target.limit)
    yield _line(tick, y - 1, tick, y + _ROW - 3, INK, width=2)


def scaling(ledger: Ledger) -> str:
    """A panel for each measure against partitions, connections and log size; both axes logarithmic."""
    parts = [_legend()]
    for i, (group, metric, title) in enumerate(_PANELS):
        left = 20 + (i % 3) * (_PANEL_WIDTH + _GAP)
        top = 50 + (i // 3) * (_PANEL_HEIGHT + 70)
        parts += _panel(ledger, group, metric, title, left, top)
    return _svg(20 + 3 * (_PANEL_WIDTH + _GAP), 50 + 3 * (_PANEL_HEIGHT + 70), parts)


def _panel(ledger: Ledger, group: str, metric: str, title: str, left: float, top: float) -> Iterable[str]:
    curves = {broker: _curve(ledger, group, metric, broker) for broker in (KAFKA, HEADRACE)}
    points = [point for curve in curves.values() for point in curve]
    yield _text(left, top - 8, title, size=13)
    yield _rect(left, top, _PANEL_WIDTH, _PANEL_HEIGHT, stroke=FAINT)
    if not points:
        yield _text(left + 10, top + 20, "not measured in this run")
        return
    across, up = _decades([p[0] for p in points]), _decades([p[1] for p in points])

    def x(value: float) -> float:
        return left + 12 + (_PANEL_WIDTH - 60) * (log10(value) - across[0]) / (across[1] - across[0])

    def y(value: float) -> float:
        return top + _PANEL_HEIGHT - 10 - (_PANEL_HEIGHT - 34) * (log10(value) - up[0]) / (up[1] - up[0])

    for value in sorted({point[0] for point in points}):
        yield _text(x(value), top + _PANEL_HEIGHT + 14, f"{value:,.0f}", anchor="middle")
    yield _text(left + _PANEL_WIDTH, top + _PANEL_HEIGHT + 28, _AXIS_NAME[group], anchor="end")
    for broker, curve in curves.items():
        colour, label_y = (OURS, 14) if broker == HEADRACE else (PEER, -5)
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for a, b in curve:
            yield f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>'
            yield _text(x(a) + 5, y(b) + label_y, number(b), colour=colour)


def _curve(ledger: Ledger, group: str, metric: str, broker: str) -> list[tuple[float, float]]:
    points = []
    for case in ledger.cases.values():
        found = ledger.spread(case.id, metric, broker)
        if case.group == group and found and found.median > 0:
            points.append((float(case.id.rpartition("/")[2]), found.median))
    return sorted(points)


def _legend() -> str:
    kafka, ours = (
        _text(20, 22, "— Apache Kafka 4.3", size=14, colour=PEER),
        _text(190, 22, "— headrace", size=14, colour=OURS),
    )
    return kafka + ours


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around the values, at least one apart."""
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, colour: str = INK) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="{width}"/>'


def _rect(x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = "none") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}" stroke="{stroke}"/>'


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, _rect(0, 0, width, height, fill="white"), *parts, "</svg>"]) + "\n"
