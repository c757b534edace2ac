"""The high watermark: up to where every in-sync replica holds the log, so that consumers may read it."""

from collections.abc import Collection, Mapping


def high_watermark(ends: Mapping[int, int], isr: Collection[int]) -> int:
    """The offset that every in-sync replica has reached."""
    assert isr, "a leader is always in its own ISR"
    return min(map(ends.__getitem__, isr))
