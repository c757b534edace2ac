"""Clock interface, which tests replace."""

from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Returns milliseconds since 1970, for timestamps that leave the process."""

    def monotonic_ms(self) -> int:
        """Returns milliseconds that never go backward, for deadlines."""
