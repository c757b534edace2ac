"""The bytes of a frame that has not arrived as a whole. Knows frames by their length; asks nobody for memory."""

from struct import Struct

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
