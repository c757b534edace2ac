"""Splits a byte stream into HTTP/2 frames, and DATA into gRPC messages. Pure; performs no I/O.

HTTP/2 frame                                       gRPC message
┌────────┬──────┬───────┬────────┬─────────┐       ┌────────────┬────────┬─────────┐
│length 3│type 1│flags 1│stream 4│ payload │       │compressed 1│length 4│ message │
└────────┴──────┴───────┴────────┴─────────┘       └────────────┴────────┴─────────┘
"""

from collections.abc import Iterator
from struct import Struct

_FRAME_HEADER_BYTES = 9
# HTTP/2's default maximum, which this client does not raise. A peer with another protocol usually exceeds it.
_FRAME_BYTES_MAX = 16 * 1024
_TYPE_GOAWAY = 7
_GOAWAY = Struct(">II")
_PREFIX = Struct(">BI")
# A starting node receives all cluster metadata in one message.
MESSAGE_BYTES_MAX = 256 * 1024 * 1024


class BrokenPeer(Exception):
    """The peer's bytes are malformed; nothing after them can be parsed."""


class FrameSplitter:
    def __init__(self) -> None:
        self._buffer = bytearray()

    def split(self, data: bytes) -> Iterator[bytes]:
        """Yields every complete frame, with its header."""
        self._buffer += data
        while len(self._buffer) >= _FRAME_HEADER_BYTES:
            length = int.from_bytes(self._buffer[:3], "big")
            if length > _FRAME_BYTES_MAX:
                raise BrokenPeer(f"a frame of {length} bytes; at most {_FRAME_BYTES_MAX} are allowed")
            end = _FRAME_HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield frame


def last_stream_if_goaway(frame: bytes) -> int | None:
    """Returns the last stream to which the peer will respond, if the frame is a GOAWAY; else None."""
    if frame[3] != _TYPE_GOAWAY:
        return None
    if len(frame) < _FRAME_HEADER_BYTES + _GOAWAY.size:
        raise BrokenPeer("a GOAWAY frame that is too short")
    last, _ = _GOAWAY.unpack_from(frame, _FRAME_HEADER_BYTES)
    return int(last) & 0x7FFF_FFFF


def message_frame(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message)) + message


class MessageSplitter:
    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_between_messages(self) -> bool:
        return not self._buffer

    def split(self, data: bytes) -> Iterator[bytes]:
        """Yields every complete message."""
        self._buffer += data
        while len(self._buffer) >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(self._buffer)
            if compressed:
                raise BrokenPeer("a message that is compressed, or none at all")
            if length > MESSAGE_BYTES_MAX:
                raise BrokenPeer(f"a message of {length} bytes; at most {MESSAGE_BYTES_MAX} are allowed")
            end = _PREFIX.size + length
            if len(self._buffer) < end:
                return
            message = bytes(memoryview(self._buffer)[_PREFIX.size : end])
            del self._buffer[:end]
            yield message
