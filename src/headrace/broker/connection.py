"""One client connection: frames in, replies out in the order of their requests.

The socket is ours, without a transport in between, because three things need it bare: receiving straight into a
buffer that is parsed in place, `sendfile` from a segment, and stopping to read when the client does not keep up.

A frame's memory is valid only until its handler returns. Handlers that answer later keep what they decoded, never
the frame.
"""

import logging
import os
import socket
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from headrace.model.errors import ProtocolError
from headrace.protocol.frames import Part, Parts
from headrace.security.access import ANONYMOUS
from headrace.storage.log_values import LogSlice

if TYPE_CHECKING:
    from headrace.broker.server import Server

log = logging.getLogger(__name__)

_SIZE = Struct(">i")

# A pipelining client gets this far ahead of its answers; Kafka's own limit is one, librdkafka's default a million.
# Enough for every batch that can share a group commit, small enough that one client cannot fill the purgatory.
REQUESTS_IN_FLIGHT_MAX = 256
# Answers that may pile up while the requests of one read are handled: what one sendmsg takes.
CORKED_PARTS_MAX = 64
# Records up to this size are copied behind their header into one packet; above it sendfile is cheaper.
COPY_BYTES_MAX = 16 * 1024
# A buffer grown for a large frame is kept for the next one up to this size: the usual largest batch, twice.
KEEP_BUFFER_BYTES = 2 * 1024 * 1024
# Growth starts here and doubles as bytes really arrive: an announced length alone costs us nothing.
FIRST_BUFFER_BYTES = 64 * 1024
# A first read while memory is short: ordinary small requests still arrive whole, and what a stranger's half frame
# makes us hold beyond the budget is this much.
SHORT_READ_BYTES = 4 * 1024


class Parked(Protocol):
    """A request that waits for something; pointless once its client is gone."""

    def cancel(self) -> None: ...


class Reply:
    """A place in the queue of answers, for a request that is answered later."""

    __slots__ = ("_connection", "parts")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.parts: Parts | None = None

    def send(self, parts: Parts) -> None:
        """Answer. Waits its turn behind earlier requests of the connection; does nothing once it is closed."""
        self.parts = parts
        self._connection.answered()

    def abandon(self) -> None:
        """There is no answer to give: the connection cannot go on."""
        self._connection.close("a request could not be answered")


class Connection:
    __slots__ = (
        "_alone",
        "_buffer",
        "_buffered",
        "_corked",
        "_dispatch",
        "_fd",
        "_loop",
        "_outgoing",
        "_reading",
        "_replies",
        "_server",
        "_socket",
        "_view",
        "_writing",
        "client_host",
        "closed",
        "last_active_ms",
        "listener",
        "parked",
        "principal",
    )

    def __init__(self, server: "Server", sock: socket.socket, client_host: str, listener: str) -> None:
        self._server = server
        self._dispatch = server.dispatch
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = server.loop
        self.client_host = client_host
        self.listener = listener
        self.principal = ANONYMOUS
        self.closed = False
        self.last_active_ms = 0
        self.parked: set[Parked] = set()
        # A frame that arrived in part; whole frames are parsed in the server's shared buffer.
        self._buffer: bytearray | None = None
        self._view: memoryview = memoryview(b"")
        self._buffered = 0
        self._replies: deque[Reply] = deque()
        self._alone: Reply | None = None  # of the request that is handled with nothing else behind it
        self._outgoing: deque[Part] = deque()
        self._writing = False
        self._corked = False
        self._reading = True
        self._loop.add_reader(self._fd, self._readable)

    # Reading

    def _readable(self) -> None:
        try:
            if self._buffer is None:
                self._read_into_shared_buffer()
            else:
                self._read_into_own_buffer()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"read failed: {error.strerror}")
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            self._failed()

    def _failed(self) -> None:
        # A bug of ours. What became of the request is unknown, and no code says that; a closed connection does.
        log.exception("a request of %s failed", self.client_host)
        self.close("a request could not be answered")

    def _read_into_shared_buffer(self) -> None:
        shared = self._server.receive_view
        if self._server.budget.is_short:
            shared = shared[:SHORT_READ_BYTES]
        received = self._socket.recv_into(shared)
        if not received:
            self.close(None)
            return
        used = self._parse(shared, received)
        if used < received and not self.closed:
            self._keep(shared[used:received])

    def _read_into_own_buffer(self) -> None:
        if not self._buffered:
            self._server.budget.in_use(self)
        elif self._buffered == len(self._view) and not self._grow():
            return
        received = self._socket.recv_into(self._view[self._buffered : self._end_of_large_frame()])
        if not received:
            self.close(None)
            return
        self._buffered += received
        self._parse_own_buffer()

    def _end_of_large_frame(self) -> int:
        """Up to where to receive: a large frame ends where its bytes end, so that none are moved afterwards."""
        if self._buffered >= 4:
            frame_end: int = _SIZE.unpack_from(self._view)[0] + 4
            if frame_end > FIRST_BUFFER_BYTES and self._buffered < frame_end:
                return min(frame_end, len(self._view))
        return len(self._view)

    def _parse_own_buffer(self) -> None:
        used = self._parse(self._view, self._buffered)
        if self.closed or not used:
            return
        left = self._buffered - used
        if left:
            self._view[:left] = bytes(self._view[used : self._buffered])
        self._buffered = left
        if not left:
            self._drop_large_buffer()

    def _parse(self, view: memoryview, end: int) -> int:
        """Hand every whole frame to dispatch; returns how many bytes were used."""
        position = 0
        self._corked = True  # answers to requests that came together leave together
        try:
            while end - position >= 4:
                size = _SIZE.unpack_from(view, position)[0]
                if size < 0 or size > self._server.frame_bytes_max:
                    raise ProtocolError(
                        f"a request of {size} bytes; between 0 and {self._server.frame_bytes_max} are accepted"
                    )
                if end - position - 4 < size or not self._may_read_on():
                    break
                frame = view[position + 4 : position + 4 + size]
                position += 4 + size
                parts = self._dispatch(self, frame)
                if parts is not None:
                    self._answer_now(parts)
                if not self._reading:
                    break
        finally:
            self._corked = False
            if self._outgoing and not self._writing:
                self._flush()
            if not self._reading:
                self._resume_soon()
        if position:
            # A request is a sign of life, a byte is not: else half a frame could be spun out for ever.
            self.last_active_ms = self._server.now_ms
        return position

    def _may_read_on(self) -> bool:
        """Back-pressure: a client that does not read its answers is not read from."""
        if len(self._replies) < REQUESTS_IN_FLIGHT_MAX and not self._writing and len(self._outgoing) < CORKED_PARTS_MAX:
            return True
        if not self._writing:
            self._flush()
        if self.closed:
            return False
        if len(self._replies) < REQUESTS_IN_FLIGHT_MAX and not self._writing:
            return True
        self._stop_reading()
        return False

    def _resume_soon(self) -> None:
        """Whatever stopped the reading may be over already; the buffers are in order on the next turn of the loop."""
        if not self._outgoing and self._alone is None and len(self._replies) < REQUESTS_IN_FLIGHT_MAX:
            self._loop.call_soon(self.resume_reading)

    def _keep(self, rest: memoryview) -> None:
        """The beginning of a frame, or frames that have to wait: into a buffer of our own."""
        budget = self._server.budget
        size = len(rest) if budget.is_short else max(FIRST_BUFFER_BYTES, len(rest))
        budget.charge(self, size)
        self.last_active_ms = self._server.now_ms
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._buffered = len(rest)

    def _grow(self) -> bool:
        """Twice the room, but no more than the frame needs; False when the broker's memory is spoken for."""
        assert self._buffer is not None
        frame = _SIZE.unpack_from(self._view)[0] + 4 if self._buffered >= 4 else FIRST_BUFFER_BYTES
        size = max(min(max(2 * len(self._buffer), FIRST_BUFFER_BYTES), frame), len(self._buffer) + 1)
        if not self._server.budget.take(self, size - len(self._buffer)):
            self._stop_reading()
            return False
        grown = bytearray(size)
        grown[: self._buffered] = self._view[: self._buffered]
        self._buffer = grown
        self._view = memoryview(grown)
        return True

    def _drop_large_buffer(self) -> None:
        if self._buffer is not None and KEEP_BUFFER_BYTES >= len(self._buffer) > FIRST_BUFFER_BYTES:
            self._server.budget.spare(self)
        else:
            self._release_buffer()

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self.drop_spare_buffer()
            self._server.budget.give(self)

    def drop_spare_buffer(self) -> None:
        """Forget the receive buffer, which holds nothing: the budget wants its bytes for somebody else."""
        self._buffer = None
        self._view = memoryview(b"")

    @property
    def owes_half_a_frame(self) -> bool:
        """Whether it holds the beginning of a frame and waits for nobody but its client."""
        return self._buffered > 0 and self._reading

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Go on with what was received, then with the socket."""
        if self._reading or self.closed or self._alone is not None:
            return
        self._reading = True
        self.last_active_ms = self._server.now_ms  # the silence was ours
        self._loop.add_reader(self._fd, self._readable)
        if self._buffer is not None and self._buffered:
            try:
                self._parse_own_buffer()
            except ProtocolError as error:
                self.close(str(error))
            except Exception:
                self._failed()

    # Answering

    def reserve_reply(self) -> Reply:
        """A place for the answer to the request that is being handled right now."""
        reply = Reply(self)
        self._replies.append(reply)
        return reply

    def reserve_last_reply(self) -> Reply:
        """The same, and nothing more is read before that answer is on its way.

        For requests whose size, or whose answer's, has no small bound: a connection holds one of them at a time.
        """
        self._alone = self.reserve_reply()
        self._stop_reading()
        return self._alone

    def _answer_now(self, parts: Parts) -> None:
        if self._replies:
            reply = self.reserve_reply()
            reply.parts = parts
        elif parts:
            self._write(parts)

    def answered(self) -> None:
        """Send every answer whose turn has come."""
        replies = self._replies
        while replies and replies[0].parts is not None:
            reply = replies.popleft()
            if reply is self._alone:
                self._alone = None
            if reply.parts and not self.closed:
                self._write(reply.parts)
        if not self._reading and not self._outgoing:
            self.resume_reading()

    def _write(self, parts: Parts) -> None:
        if self._corked or self._outgoing:
            self._outgoing.extend(parts)
            return
        if len(parts) == 1 and not isinstance(parts[0], LogSlice):
            data = parts[0]
            try:
                sent = self._socket.send(data)  # type: ignore[arg-type]  # a part is bytes or a LogSlice
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.close(f"write failed: {error.strerror}")
                return
            if sent == len(data):  # type: ignore[arg-type]
                return
            self._outgoing.append(memoryview(data)[sent:])  # type: ignore[arg-type]
        else:
            self._outgoing.extend(parts)
        self._flush()

    def _flush(self) -> None:
        """Send until everything is gone or the socket is full."""
        try:
            while self._outgoing:
                if not self._send_head():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(f"write failed: {error.strerror}")
            return
        if self._outgoing and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)
        elif not self._outgoing and self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _writable(self) -> None:
        self.last_active_ms = self._server.now_ms  # it reads, however slowly
        self._flush()
        if not self._outgoing and not self._reading:
            self.resume_reading()

    def _send_head(self) -> bool:
        """Send the first part, together with small neighbours; False when the socket took only some of it."""
        outgoing = self._outgoing
        head = outgoing[0]
        if isinstance(head, LogSlice) and head.length > COPY_BYTES_MAX:
            sent = os.sendfile(self._fd, head.file.fileno(), head.position, head.length)
            if not sent:
                raise OSError(5, f"{head.file} is shorter than it was")
            if sent < head.length:
                outgoing[0] = LogSlice(head.file, head.position + sent, head.length - sent)
                return False
            outgoing.popleft()
            return True
        pieces: list[bytes | bytearray | memoryview] = []
        more_follows = False
        for part in outgoing:
            if isinstance(part, LogSlice):
                if part.length > COPY_BYTES_MAX:
                    more_follows = True
                    break
                pieces.append(part.read())
            else:
                pieces.append(part)  # type: ignore[arg-type]
            if len(pieces) >= CORKED_PARTS_MAX:  # far below the kernel's 1,024 buffers a call
                break
        flags = socket.MSG_MORE if more_follows else 0
        sent = self._socket.send(pieces[0], flags) if len(pieces) == 1 else self._socket.sendmsg(pieces, (), flags)
        for piece in pieces:
            if sent < len(piece):
                outgoing[0] = memoryview(piece)[sent:]
                return False
            sent -= len(piece)
            outgoing.popleft()
        return True

    # Closing

    def close(self, reason: str | None) -> None:
        """Close at once; `reason` is None when the client went of its own accord."""
        if self.closed:
            return
        self.closed = True
        self._reading = False
        if reason is not None:
            log.info("closing the connection of %s: %s", self.client_host, reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._buffered = 0
        self._release_buffer()
        self._outgoing.clear()
        self._replies.clear()
        for parked in list(self.parked):
            parked.cancel()
        self._server.disconnected(self)
