"""A clock that only advances when a test moves it. Implements the Clock interface of `headrace.model.clock`."""

# A wall time that differs clearly from the real one: 2001-09-09 01:46:40 UTC.
DEFAULT_WALL_MS = 1_000_000_000_000


class SimClock:
    """Monotonic and wall time, moved together by `advance_ms` and apart by `step_wall_ms`."""

    def __init__(self, wall_ms: int = DEFAULT_WALL_MS, monotonic_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance_ms(self, duration_ms: int) -> None:
        """Advances both times. They never run backwards here: use `step_wall_ms` for that."""
        if duration_ms < 0:
            raise ValueError("time only passes forwards; use step_wall_ms to set the wall clock back")
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms

    def step_wall_ms(self, change_ms: int) -> None:
        """Steps the wall clock forwards or backwards; deadlines must not change."""
        self._wall_ms += change_ms
