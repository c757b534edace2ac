"""Memory for received requests: the shared receive buffer and the budget of all connections.

Knows frames by their length; asks nobody for memory.
"""

from struct import Struct
from typing import Protocol


class PoolUser(Protocol):
    """A connection with the beginning of a frame, or with an empty buffer that it kept for its next one."""

    def resume_reading(self) -> None: ...

    def drop_spare_buffer(self) -> None: ...


class MemoryPool:
    """Bytes handed out to connections; one that gets none stops reading and is resumed when some come back.

    Spare buffers go first. If every holder waits for more, none of them would ever give anything back: then one goes
    on all the same, so the most that is ever held is the budget and one frame, and a short read for each connection.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[PoolUser, int] = {}
        self._spare: dict[PoolUser, None] = {}
        self._waiting: dict[PoolUser, None] = {}
        self.used = 0
        self.is_short = False

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def charge(self, holder: PoolUser, size: int) -> None:
        """Bytes that are here already: there is no choice."""
        self._taken[holder] = self._taken.get(holder, 0) + size
        self._use(size)

    def take(self, holder: PoolUser, size: int) -> bool:
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

    def give(self, holder: PoolUser) -> None:
        """Everything that the holder has; whoever waits gets another try."""
        self._waiting.pop(holder, None)
        self._spare.pop(holder, None)
        self._use(-self._taken.pop(holder, 0))
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.resume_reading()

    def spare(self, holder: PoolUser) -> None:
        """The holder has an empty buffer, and keeps it for its next frame unless somebody needs the bytes."""
        self._spare[holder] = None
        if self._waiting:
            holder.drop_spare_buffer()
            self.give(holder)

    def in_use(self, holder: PoolUser) -> None:
        self._spare.pop(holder, None)

    def _drop_spare_buffers(self) -> None:
        spare, self._spare = self._spare, {}
        for holder in spare:
            holder.drop_spare_buffer()
            self._use(-self._taken.pop(holder))

    def _use(self, size: int) -> None:
        self.used += size
        self.is_short = self.used >= self._bytes_max


FRAME_SIZE = Struct(">i")

# A buffer grown for a large frame is kept for the next one up to this size: the usual largest batch, twice.
KEEP_BUFFER_BYTES = 2 * 1024 * 1024
# Growth starts here and doubles as bytes really arrive: an announced length alone costs us nothing.
FIRST_BUFFER_BYTES = 64 * 1024


class ReceiveBuffer:
    __slots__ = ("filled", "view")

    def __init__(self, beginning: memoryview, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.view[: len(beginning)] = beginning
        self.filled = len(beginning)

    def __len__(self) -> int:
        """All its room, filled or not: what it weighs."""
        return len(self.view)

    @property
    def is_full(self) -> bool:
        return self.filled == len(self)

    @property
    def is_worth_keeping(self) -> bool:
        """Empty, and grown for a frame of a size that may well come again."""
        return KEEP_BUFFER_BYTES >= len(self) > FIRST_BUFFER_BYTES

    def room(self) -> memoryview:
        """Where to receive: a large frame ends where its bytes end, so that none are moved afterwards."""
        end = len(self.view)
        if self.filled >= 4:
            frame_end = FRAME_SIZE.unpack_from(self.view)[0] + 4
            if frame_end > FIRST_BUFFER_BYTES and self.filled < frame_end:
                end = min(frame_end, end)
        return self.view[self.filled : end]

    def next_size(self) -> int:
        """Twice the room, but no more than the frame needs."""
        size = len(self.view)
        frame = FRAME_SIZE.unpack_from(self.view)[0] + 4 if self.filled >= 4 else FIRST_BUFFER_BYTES
        return int(max(min(max(2 * size, FIRST_BUFFER_BYTES), frame), size + 1))

    def grow(self, size: int) -> None:
        grown = memoryview(bytearray(size))
        grown[: self.filled] = self.view[: self.filled]
        self.view = grown

    def consume(self, used: int) -> None:
        """Move what is left to the front."""
        left = self.filled - used
        if left:
            self.view[:left] = bytes(self.view[used : self.filled])
        self.filled = left
