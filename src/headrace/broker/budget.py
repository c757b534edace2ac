"""How much memory all clients together may make us hold for requests that are not whole yet."""

from typing import Protocol


class Waiter(Protocol):
    def resume_reading(self) -> None: ...


class MemoryBudget:
    """Bytes handed out to connections; one that gets none stops reading and is resumed when some come back."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[Waiter, int] = {}
        self._waiting: dict[Waiter, None] = {}
        self.used = 0

    def take(self, holder: Waiter, size: int) -> bool:
        if self.used + size > self._bytes_max and self._taken:
            self._waiting[holder] = None
            return False
        self._taken[holder] = self._taken.get(holder, 0) + size
        self.used += size
        return True

    def give(self, holder: Waiter) -> None:
        """Everything that the holder has; whoever waits gets another try."""
        self._waiting.pop(holder, None)
        self.used -= self._taken.pop(holder, 0)
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.resume_reading()
