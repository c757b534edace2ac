"""Time as a port: whoever needs the time is handed a Clock, so that tests can hand in another."""

from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970, for timestamps that leave the process."""

    def monotonic_ms(self) -> int:
        """Milliseconds that only go forward, for deadlines."""
