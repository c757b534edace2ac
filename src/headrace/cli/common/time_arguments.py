"""Parses time arguments: milliseconds, ISO dates, or durations before now."""

import time
from datetime import datetime

import typer

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str, now_ms: int | None = None) -> int:
    """Returns milliseconds since 1970 of `1700000000000`, `2026-05-01T12:00`, or `15m` (15 minutes ago)."""
    if text.isascii() and text.isdigit():
        return int(text)
    ago_ms = _duration_ms(text)
    if ago_ms is not None:
        return (int(time.time() * 1000) if now_ms is None else now_ms) - ago_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 2026-05-01T12:00, milliseconds since 1970, or 15m for 15 minutes ago"
        ) from None
    return int(moment.astimezone().timestamp() * 1000)


def show_time(milliseconds: int) -> str:
    """Returns local time with milliseconds and zone; a dash for records without a timestamp."""
    if milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def _duration_ms(text: str) -> int | None:
    for unit in ("ms", "s", "m", "h", "d"):
        number = text.removesuffix(unit)
        if number != text and number.isascii() and number.isdigit():
            return int(number) * _UNIT_MS[unit]
    return None
