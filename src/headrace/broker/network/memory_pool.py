"""Memory for received requests: the budget of all connections and the receive buffer of one."""

from struct import Struct
from typing import Protocol


class PoolUser(Protocol):
    """A connection that holds a partial frame, or an empty buffer kept for its next frame."""

    def resume_reading(self) -> None: ...

    def drop_spare_buffer(self) -> None: ...


class MemoryPool:
    """Budget of receive memory.

    A connection that is denied memory stops reading and is resumed when memory is released. Spare buffers are
    released first. If every holder waits for more memory, none would ever release any: then one of them proceeds
    beyond the budget. The most that is ever held is the budget, one frame, and a short read for each connection.
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
        """Accounts for bytes that are already in memory; never fails."""
        self._taken[holder] = self._taken.get(holder, 0) + size
        self._use(size)

    def take(self, holder: PoolUser, size: int) -> bool:
        """Takes memory for a holder; returns False and queues the holder if the budget is exhausted."""
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
        """Releases all memory of the holder and resumes every waiting connection."""
        self._waiting.pop(holder, None)
        self._spare.pop(holder, None)
        self._use(-self._taken.pop(holder, 0))
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.resume_reading()

    def spare(self, holder: PoolUser) -> None:
        """Marks the holder's buffer as empty and spare; it is released at once if connections wait for memory."""
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

# Buffers up to this size are kept for the next large frame: twice the usual largest batch.
KEEP_BUFFER_BYTES = 2 * 1024 * 1024
# Buffers start at this size and double as bytes arrive, so an announced frame length alone allocates nothing.
FIRST_BUFFER_BYTES = 64 * 1024


class ReceiveBuffer:
    __slots__ = ("filled", "view")

    def __init__(self, beginning: memoryview, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.view[: len(beginning)] = beginning
        self.filled = len(beginning)

    def __len__(self) -> int:
        """Capacity in bytes, filled or not."""
        return len(self.view)

    @property
    def is_full(self) -> bool:
        return self.filled == len(self)

    @property
    def is_worth_keeping(self) -> bool:
        """Whether the buffer was grown for a frame of a size that is likely to recur. The buffer is empty."""
        return KEEP_BUFFER_BYTES >= len(self) > FIRST_BUFFER_BYTES

    def room(self) -> memoryview:
        """Returns the part of the buffer to receive into; it ends with a large frame, so that no bytes are moved
        later.
        """
        end = len(self.view)
        if self.filled >= 4:
            frame_end = FRAME_SIZE.unpack_from(self.view)[0] + 4
            if frame_end > FIRST_BUFFER_BYTES and self.filled < frame_end:
                end = min(frame_end, end)
        return self.view[self.filled : end]

    def next_size(self) -> int:
        """Twice the capacity, but at most what the frame needs."""
        size = len(self.view)
        frame = FRAME_SIZE.unpack_from(self.view)[0] + 4 if self.filled >= 4 else FIRST_BUFFER_BYTES
        return int(max(min(max(2 * size, FIRST_BUFFER_BYTES), frame), size + 1))

    def grow(self, size: int) -> None:
        grown = memoryview(bytearray(size))
        grown[: self.filled] = self.view[: self.filled]
        self.view = grown

    def consume(self, used: int) -> None:
        """Discards the first `used` bytes and moves the rest to the front."""
        left = self.filled - used
        if left:
            self.view[:left] = bytes(self.view[used : self.filled])
        self.filled = left
