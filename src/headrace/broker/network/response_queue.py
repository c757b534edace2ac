"""Responses of one connection: slots in request order, and writing them to the socket.

Answers that are not there yet: a place in a connection's queue.

The sending side of a connection: parts in, bytes out, as few calls of the kernel as can be.

Small parts leave together, records from a segment go by `sendfile`. What the socket does not take waits here until it
does; the connection looks at `is_writing` and reads no more meanwhile.
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
    """What a connection does for its replies."""

    def answered(self) -> None: ...

    def close(self, reason: str | None) -> None: ...


class ResponseSlot:
    """A place in the queue of answers, for a request that is answered later."""

    __slots__ = ("_connection", "began", "durations", "parts", "requests")

    def __init__(self, connection: SlotOwner, durations: Histogram | None, began: float) -> None:
        """`durations` is told how long it took since `began`; None if that has been counted."""
        self._connection = connection
        self.durations, self.began = durations, began
        self.requests = 1  # that this answers; more, if they were handled as one
        self.parts: Parts | None = None

    def send(self, parts: Parts) -> None:
        """Answer. Waits its turn behind earlier requests of the connection; does nothing once it is closed."""
        self.parts = parts
        self._connection.answered()

    def abandon(self) -> None:
        """There is no answer to give: the connection cannot go on."""
        self._connection.close("A request failed")


# Answers that may pile up while the requests of one read are handled: what one sendmsg takes.
CORKED_PARTS_MAX = 64
# Records up to this size are copied behind their header into one packet; above it sendfile is cheaper.
COPY_BYTES_MAX = 16 * 1024


class Sender(Protocol):
    """The connection, as its outbox sees it."""

    def writable(self) -> None:
        """The socket takes bytes again."""

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
        self.is_corked = False  # answers to requests that came together leave together
        self.is_writing = False  # the socket is full, and the loop tells when it is not

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
        """Send until everything is gone or the socket is full."""
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
        """Send the first part, together with small neighbours; False when the socket took only some of it."""
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
        """What goes in one call, and whether the kernel shall wait for more before it makes a packet of it."""
        pieces: list[bytes | bytearray | memoryview] = []
        for part in self._parts:
            if isinstance(part, FileRecords):
                if part.length > COPY_BYTES_MAX:
                    return pieces, socket.MSG_MORE
                pieces.append(part.read())
            else:
                pieces.append(part)  # type: ignore[arg-type]
            if len(pieces) >= CORKED_PARTS_MAX:  # far below the kernel's 1,024 buffers a call
                break
        return pieces, 0

    def close(self) -> None:
        self._loop.remove_writer(self._fd)
        self._parts.clear()
