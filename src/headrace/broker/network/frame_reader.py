"""Receiving side of a connection: reads from the socket until complete frames are available, within a memory budget.

Complete frames are parsed in a buffer that all connections share. Only a partial frame gets a buffer of its own.
`connection.py` handles the frames.
"""

import logging
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.broker.network.memory_pool import FIRST_BUFFER_BYTES, ReceiveBuffer
from headrace.model.errors import ProtocolError

if TYPE_CHECKING:
    from headrace.broker.network.socket_server import Server

log = logging.getLogger(__name__)

# Size of the first read while memory is short. Ordinary small requests still arrive whole, and a partial frame of an
# untrusted client takes at most this much beyond the budget.
SHORT_READ_BYTES = 4 * 1024


class FrameReader(ABC):
    __slots__ = (
        "_buffer",
        "_fd",
        "_figures",
        "_loop",
        "_reading",
        "_server",
        "_socket",
        "client_host",
        "closed",
        "last_active_ms",
    )

    def __init__(self, server: "Server", sock: socket.socket, client_host: str) -> None:
        self._server = server
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = server.loop
        self._figures = server.figures
        self.client_host = client_host
        self.closed = False
        self.last_active_ms = 0
        # Holds a partial frame; complete frames are parsed in the server's shared buffer.
        self._buffer: ReceiveBuffer | None = None
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)

    @abstractmethod
    def _parse(self, view: memoryview, end: int) -> int:
        """Handles complete frames at the start of the received bytes; returns the number of bytes consumed."""

    @abstractmethod
    def close(self, reason: str | None) -> None:
        """Closes the connection immediately; `reason` is None when the client closed it."""

    def _readable(self) -> None:
        try:
            if self._buffer is None:
                self._read_into_shared_buffer()
            else:
                self._read_into_own_buffer(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"read failed: {error.strerror}")
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            self._failed()

    def _failed(self) -> None:
        # Unexpected exception: the result of the request is unknown and has no error code, so the connection is closed.
        log.exception("a request of %s failed", self.client_host)
        self.close("A request failed")

    def _read_into_shared_buffer(self) -> None:
        shared = self._server.receive_view
        if self._server.budget.is_short:
            shared = shared[:SHORT_READ_BYTES]
        received = self._socket.recv_into(shared)
        if not received:
            self.close(None)
            return
        self._figures.bytes_in += received
        used = self._parse(shared, received)
        if used < received and not self.closed:
            self._keep(shared[used:received])

    def _read_into_own_buffer(self, buffer: ReceiveBuffer) -> None:
        if not buffer.filled:
            self._server.budget.in_use(self)
        elif buffer.is_full and not self._grow(buffer):
            return
        received = self._socket.recv_into(buffer.room())
        if not received:
            self.close(None)
            return
        self._figures.bytes_in += received
        buffer.filled += received
        self._parse_own_buffer(buffer)

    def _grow(self, buffer: ReceiveBuffer) -> bool:
        """Returns False and stops reading when the memory budget is exhausted."""
        size = buffer.next_size()
        if not self._server.budget.take(self, size - len(buffer)):
            self._figures.waits_for_memory += 1
            self._stop_reading()
            return False
        buffer.grow(size)
        return True

    def _parse_own_buffer(self, buffer: ReceiveBuffer) -> None:
        used = self._parse(buffer.view, buffer.filled)
        if self.closed or not used:
            return
        buffer.consume(used)
        if buffer.filled:
            return
        if buffer.is_worth_keeping:
            self._server.budget.spare(self)
        else:
            self._release_buffer()

    def _keep(self, rest: memoryview) -> None:
        """Copies a partial frame, or frames that cannot be handled yet, into a buffer of this connection."""
        budget = self._server.budget
        size = len(rest) if budget.is_short else max(FIRST_BUFFER_BYTES, len(rest))
        budget.charge(self, size)
        self.last_active_ms = self._server.now_ms
        self._buffer = ReceiveBuffer(rest, size)

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self.drop_spare_buffer()
            self._server.budget.give(self)

    def drop_spare_buffer(self) -> None:
        """Releases the receive buffer, which is empty, because the budget needs its bytes."""
        self._buffer = None

    @property
    def has_partial_frame(self) -> bool:
        """Whether the connection holds a partial frame and waits only for its client."""
        return self._buffer is not None and self._buffer.filled > 0 and self._reading

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Parses buffered frames, then reads from the socket again."""
        if self._reading or self.closed:
            return
        self._reading = True
        self.last_active_ms = self._server.now_ms  # the server stopped reading, so the client was not idle
        self._loop.add_reader(self._fd, self._readable)
        if self._buffer is not None and self._buffer.filled:
            try:
                self._parse_own_buffer(self._buffer)
            except ProtocolError as error:
                self.close(str(error))
            except Exception:
                self._failed()
