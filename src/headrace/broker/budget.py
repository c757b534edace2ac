"""How much memory all clients together may make us hold for requests that are not whole yet."""

from typing import Protocol


class Holder(Protocol):
    """A connection with the beginning of a frame, or with an empty buffer that it kept for its next one."""

    def resume_reading(self) -> None: ...

    def drop_spare_buffer(self) -> None: ...


class MemoryBudget:
    """Bytes handed out to connections; one that gets none stops reading and is resumed when some come back.

    Spare buffers go first. If every holder waits for more, none of them would ever give anything back: then one goes
    on all the same, so the most that is ever held is the budget and one frame, and a short read for each connection.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[Holder, int] = {}
        self._spare: dict[Holder, None] = {}
        self._waiting: dict[Holder, None] = {}
        self.used = 0
        self.is_short = False

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def charge(self, holder: Holder, size: int) -> None:
        """Bytes that are here already: there is no choice."""
        self._taken[holder] = self._taken.get(holder, 0) + size
        self._use(size)

    def take(self, holder: Holder, size: int) -> bool:
        """More room for a holder, who waits if there is none."""
        if self.used + size > self._bytes_max:
            self._drop_spare_buffers()
        if self.used + size > self._bytes_max:
            self._waiting[holder] = None
            if len(self._waiting) < len(self._taken):
                return False
            del self._waiting[holder]
        self.charge(holder, size)
        return True

    def give(self, holder: Holder) -> None:
        """Everything that the holder has; whoever waits gets another try."""
        self._waiting.pop(holder, None)
        self._spare.pop(holder, None)
        self._use(-self._taken.pop(holder, 0))
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.resume_reading()

    def spare(self, holder: Holder) -> None:
        """The holder has an empty buffer, and keeps it for its next frame unless somebody needs the bytes."""
        self._spare[holder] = None
        if self._waiting:
            holder.drop_spare_buffer()
            self.give(holder)

    def in_use(self, holder: Holder) -> None:
        self._spare.pop(holder, None)

    def _drop_spare_buffers(self) -> None:
        spare, self._spare = self._spare, {}
        for holder in spare:
            holder.drop_spare_buffer()
            self._use(-self._taken.pop(holder))

    def _use(self, size: int) -> None:
        self.used += size
        self.is_short = self.used >= self._bytes_max
