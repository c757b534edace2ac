"""Numbers as people read them: three digits that matter, the unit beside them."""

from bench.ledger import METRICS, Spread

_DIGITS = 3


def number(value: float) -> str:
    """1234567 → 1.23 M, 5123 → 5.12 k, 0.2512 → 0.251"""
    for factor, suffix in ((1e6, " M"), (1e4, " k")):
        if abs(value) >= factor:
            scale = 1e6 if suffix == " M" else 1e3
            return f"{_plain(value / scale)}{suffix}"
    return _plain(value)


def _plain(value: float) -> str:
    if value == 0 or value == int(value):
        return str(int(value))
    if abs(value) >= 10**_DIGITS:
        return f"{value:.0f}"
    text = f"{value:.{_DIGITS}g}"
    return text if "e" not in text else f"{value:.5f}"


def readable(metric: str, value: float) -> str:
    unit = METRICS[metric].unit
    return f"{number(value)} {unit}".rstrip()


def with_spread(metric: str, found: Spread | None) -> str:
    """The median, and in brackets the lowest and highest when there are several."""
    if found is None:
        return "–"
    text = readable(metric, found.median)
    return text if found.low == found.high else f"{text} ({number(found.low)} … {number(found.high)})"


def times(found: Spread | None) -> str:
    if found is None:
        return "–"
    text = f"{number(found.median)} ×"
    return text if found.low == found.high else f"{text} ({number(found.low)} … {number(found.high)})"
