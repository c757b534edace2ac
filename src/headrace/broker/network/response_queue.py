"""Sending side of a connection: response slots in request order, and the writer that sends responses to the socket.

The writer uses as few system calls as possible. Small parts are sent together, and records of a segment with
`sendfile`. Parts that the socket does not accept stay queued; while `is_writing` is true, the connection reads no
further requests.
"""

import asyncio
import os
import socket
from collections import deque
from typing import Protocol

from headrace.broker.metrics import NetworkMetrics
from headrace.protocol.frames import Part, Parts
from headrace.storage.log_types import FileRecords
from headrace.telemetry.metrics import Histogram


class SlotOwner(Protocol):
    """Callbacks of a response slot to its connection."""

    def answered(self) -> None: ...

    def close(self, reason: str | None) -> None: ...


class ResponseSlot:
    """Position in the response queue of a request with a deferred response."""

    __slots__ = ("_connection", "began", "durations", "parts", "requests")

    def __init__(self, connection: SlotOwner, durations: Histogram | None, began: float) -> None:
        """`durations` records the time since `began`; None if it has been recorded already."""
        self._connection = connection
        self.durations, self.began = durations, began
        self.requests = 1  # number of requests that this responds to; above 1 if they were coalesced
        self.parts: Parts | None = None

    def send(self, parts: Parts) -> None:
        """Completes the response. It is sent after those of earlier requests; a closed connection discards it."""
        self.parts = parts
        self._connection.answered()

    def abandon(self) -> None:
        """Closes the connection, because the request has no response."""
        self._connection.close("A request failed")


# Maximum parts that are queued while the requests of one read are handled; one sendmsg sends them.
CORKED_PARTS_MAX = 64
# Records up to this size are copied behind their header into one packet; above it, sendfile is cheaper.
COPY_BYTES_MAX = 16 * 1024


class Sender(Protocol):
    """Callbacks of a socket writer to its connection."""

    def writable(self) -> None:
        """Continues sending when the socket accepts bytes again."""

    def close(self, reason: str | None) -> None: ...


class SocketWriter:
    __slots__ = ("_fd", "_figures", "_loop", "_owner", "_parts", "_socket", "is_corked", "is_writing")

    def __init__(
        self, owner: Sender, sock: socket.socket, loop: asyncio.AbstractEventLoop, figures: NetworkMetrics
    ) -> None:
        self._owner = owner
        self._figures = figures
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._parts: deque[Part] = deque()
        self.is_corked = False  # queue the responses to requests of one read and send them together
        self.is_writing = False  # the socket buffer is full; the event loop calls `writable` when it is not

    def __len__(self) -> int:
        return len(self._parts)

    def write(self, parts: Parts) -> None:
        if self.is_corked or self._parts:
            self._parts.extend(parts)
            return
        if len(parts) == 1 and not isinstance(parts[0], FileRecords):
            data = parts[0]
            try:
                sent = self._socket.send(data)  # type: ignore[arg-type]  # a part is bytes or a FileRecords
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._owner.close(f"write failed: {error.strerror}")
                return
            self._figures.bytes_out += sent
            if sent == len(data):  # type: ignore[arg-type]
                return
            self._parts.append(memoryview(data)[sent:])  # type: ignore[arg-type]
        else:
            self._parts.extend(parts)
        self.flush()

    def uncork(self) -> None:
        self.is_corked = False
        if self._parts and not self.is_writing:
            self.flush()

    def flush(self) -> None:
        """Sends queued parts until the queue is empty or the socket buffer is full."""
        try:
            while self._parts:
                if not self._send_head():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._owner.close(f"write failed: {error.strerror}")
            return
        if self._parts and not self.is_writing:
            self.is_writing = True
            self._loop.add_writer(self._fd, self._owner.writable)
        elif not self._parts and self.is_writing:
            self.is_writing = False
            self._loop.remove_writer(self._fd)

    def _send_head(self) -> bool:
        """Sends the first part together with adjacent small ones; returns False when the socket accepted only part."""
        head = self._parts[0]
        if isinstance(head, FileRecords) and head.length > COPY_BYTES_MAX:
            return self._send_slice(head)
        pieces, flags = self._small_pieces()
        sent = self._socket.send(pieces[0], flags) if len(pieces) == 1 else self._socket.sendmsg(pieces, (), flags)
        self._figures.bytes_out += sent
        for piece in pieces:
            if sent < len(piece):
                self._parts[0] = memoryview(piece)[sent:]
                return False
            sent -= len(piece)
            self._parts.popleft()
        return True

    def _send_slice(self, head: FileRecords) -> bool:
        sent = os.sendfile(self._fd, head.file.fileno(), head.position, head.length)
        if not sent:
            raise OSError(5, f"{head.file} is shorter than it was")
        self._figures.bytes_out += sent
        if sent < head.length:
            self._parts[0] = FileRecords(head.file, head.position + sent, head.length - sent)
            return False
        self._parts.popleft()
        return True

    def _small_pieces(self) -> tuple[list[bytes | bytearray | memoryview], int]:
        """Returns the buffers for one call, and MSG_MORE if a large slice follows them in the same packet."""
        pieces: list[bytes | bytearray | memoryview] = []
        for part in self._parts:
            if isinstance(part, FileRecords):
                if part.length > COPY_BYTES_MAX:
                    return pieces, socket.MSG_MORE
                pieces.append(part.read())
            else:
                pieces.append(part)  # type: ignore[arg-type]
            if len(pieces) >= CORKED_PARTS_MAX:  # far below the kernel's limit of 1,024 buffers per call
                break
        return pieces, 0

    def close(self) -> None:
        self._loop.remove_writer(self._fd)
        self._parts.clear()
