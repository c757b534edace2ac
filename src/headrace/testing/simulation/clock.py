"""A clock that stands still until a test moves it. Implements the Clock port of `headrace.model.clock`."""

# A wall time that no test can take for a real one by accident: 2001-09-09 01:46:40 UTC.
DEFAULT_WALL_MS = 1_000_000_000_000


class SimClock:
    """Both hands of the clock, moved together by `advance_ms` and apart by `step_wall_ms`."""

    def __init__(self, wall_ms: int = DEFAULT_WALL_MS, monotonic_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance_ms(self, duration_ms: int) -> None:
        """Time passes. It never runs backwards: for that, an administrator steps the wall clock."""
        if duration_ms < 0:
            raise ValueError("time only passes forwards; use step_wall_ms to set the wall clock back")
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms

    def step_wall_ms(self, change_ms: int) -> None:
        """The wall clock is corrected, forwards or backwards; deadlines must not notice."""
        self._wall_ms += change_ms
