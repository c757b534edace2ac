"""One client connection: parses received frames and sends responses in request order.

The connection uses the socket directly, without an asyncio transport, for three reasons: it receives into a buffer
that is parsed in place (`frame_reader.py`), it sends segment bytes with `sendfile` (`response_queue.py`), and it
stops reading while the client does not read its responses.

A frame's memory is valid only until its handler returns. Handlers with deferred responses keep what they decoded,
never the frame.
"""

import logging
import socket
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from headrace.broker.api.fast_path import Coalescer, Shortcuts
from headrace.broker.network.frame_reader import FrameReader
from headrace.broker.network.memory_pool import FRAME_SIZE
from headrace.broker.network.response_queue import CORKED_PARTS_MAX, ResponseSlot, SocketWriter
from headrace.broker.runtime.delayed_operations import DelayedOperations
from headrace.model.errors import ProtocolError
from headrace.protocol.frames import Parts
from headrace.security.authorization import ANONYMOUS
from headrace.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from headrace.broker.network.socket_server import Server

log = logging.getLogger(__name__)

# Maximum in-flight requests per connection. Kafka's broker processes one at a time; librdkafka allows a million by
# default. Enough for every batch that can share a group commit, small enough that one client cannot fill the purgatory.
REQUESTS_IN_FLIGHT_MAX = 256
# Requests of one client that are handled before the event loop serves other connections. At 50 to 100 µs each, they
# take about 2 ms. More than that accumulate when the process was not scheduled.
REQUESTS_PER_ITERATION_MAX = 32


class Connection(FrameReader):
    __slots__ = (
        "_alone",
        "_answers_soon",
        "_dispatch",
        "_needs_quick_ack",
        "_out",
        "_replies",
        "began",
        "durations",
        "listener",
        "parked",
        "principal",
        "shortcuts",
        "takes_runs",
    )

    def __init__(self, server: "Server", sock: socket.socket, client_host: str, listener: str) -> None:
        super().__init__(server, sock, client_host)
        self._dispatch = server.dispatch
        # Start time and duration histogram of the request that is being handled.
        self.began = 0.0
        self.durations: Histogram | None = None
        self.listener = listener
        self.principal = ANONYMOUS
        self.parked = DelayedOperations(self._loop)
        self.shortcuts: Shortcuts = {}  # fast paths, by API key
        self.takes_runs: Coalescer | None = None  # the fast path that can coalesce consecutive requests
        self._replies: deque[ResponseSlot] = deque()
        self._answers_soon = False
        self._alone: ResponseSlot | None = None  # slot of the request that is processed exclusively
        self._needs_quick_ack = False  # the client may wait for the TCP ACK of its bytes
        self._out = SocketWriter(self, sock, self._loop, self._figures)

    # Handling

    def _parse(self, view: memoryview, end: int) -> int:
        """Dispatches complete frames, at most REQUESTS_PER_ITERATION_MAX; returns the number of bytes consumed."""
        position = 0
        left = REQUESTS_PER_ITERATION_MAX
        moment = perf_counter()
        self._out.is_corked = True
        try:
            while end - position >= 4:
                size = FRAME_SIZE.unpack_from(view, position)[0]
                if size < 0 or size > self._server.frame_bytes_max:
                    raise ProtocolError(
                        f"a request of {size} bytes; between 0 and {self._server.frame_bytes_max} are accepted"
                    )
                if end - position - 4 < size or not self._may_read_on():
                    break
                self.began = moment
                after = position + 4 + size
                run = self.takes_runs.run(view, position, end, left) if self.takes_runs and end - after >= 4 else None
                parts, position, requests = run or (self._dispatch(self, view[position + 4 : after]), after, 1)
                moment = perf_counter()  # one clock read ends this request and starts the next
                if parts is not None:
                    if self.durations is not None:
                        self.durations.add(moment - self.began, requests)
                    self._answer_now(parts)
                left -= requests
                if not left and end - position >= 4:
                    self._stop_reading()
                if not self._reading:
                    break
        finally:
            self._out.uncork()
            if not self._reading:
                self._resume_soon()
        if self._needs_quick_ack and not self.closed:
            self._needs_quick_ack = False
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if position:
            # Only a complete request resets the idle timer; otherwise single bytes could keep a partial frame open.
            self.last_active_ms = self._server.now_ms
        return position

    def _may_read_on(self) -> bool:
        """Applies back-pressure: returns False and stops reading while the client does not read its responses."""
        out = self._out
        if len(self._replies) < REQUESTS_IN_FLIGHT_MAX and not out.is_writing and len(out) < CORKED_PARTS_MAX:
            return True
        if not out.is_writing:
            out.flush()
        if self.closed:
            return False
        if len(self._replies) < REQUESTS_IN_FLIGHT_MAX and not out.is_writing:
            return True
        self._figures.waits_for_answers += 1
        self._stop_reading()
        return False

    def _resume_soon(self) -> None:
        """Resumes reading in the next event-loop iteration if the condition that stopped it is already over.

        Not at once: the receive buffers are consistent only after `_parse` has returned.
        """
        if not self._out and self._alone is None and len(self._replies) < REQUESTS_IN_FLIGHT_MAX:
            self._loop.call_soon(self.resume_reading)

    def resume_reading(self) -> None:
        """Parses buffered frames and reads from the socket again, unless an exclusive request has no response yet."""
        if self._alone is None:
            super().resume_reading()

    # Responses

    def reserve_slot(self) -> ResponseSlot:
        """Reserves the response slot of the request that is being handled."""
        reply = ResponseSlot(self, self.durations, self.began)
        self._replies.append(reply)
        return reply

    def reserve_slot_with_quick_ack(self) -> ResponseSlot:
        """Reserves a response slot and sends a TCP ACK for the request at once.

        For responses that wait for a disk or other brokers while the client has more requests to send. Some clients,
        among them librdkafka, leave Nagle's algorithm on and hold a small request back until TCP has acknowledged the
        previous one. The kernel delays that ACK until the response is sent, so each request would wait for the
        response to another.
        """
        self._needs_quick_ack = True
        return self.reserve_slot()

    def reserve_last_slot(self) -> ResponseSlot:
        """Reserves a response slot and reads no further request until its response is sent.

        For requests with no small bound on the size of the request or the response: a connection holds one of them at
        a time.
        """
        self._alone = self.reserve_slot()
        self._stop_reading()
        return self._alone

    def _answer_now(self, parts: Parts) -> None:
        if self._replies:
            reply = ResponseSlot(self, None, 0.0)
            reply.parts = parts
            self._replies.append(reply)
        elif parts:
            self._out.write(parts)

    def answered(self) -> None:
        """Sends completed responses; those of one event-loop iteration are sent together if several are outstanding."""
        if len(self._replies) < 2:
            self._send_answers()
        elif not self._answers_soon and self._replies[0].parts is not None:
            self._answers_soon = True
            self._server.call_at_iteration_end(self._send_answers)

    def _send_answers(self) -> None:
        """Sends the completed responses at the head of the queue."""
        self._answers_soon = False
        replies = self._replies
        gathers = len(replies) > 1 and not self._out.is_corked  # if already corked, `_parse` uncorks
        if gathers:
            self._out.is_corked = True
        while replies and replies[0].parts is not None:
            reply = replies.popleft()
            if reply.durations is not None:
                reply.durations.add(perf_counter() - reply.began, reply.requests)
            if reply is self._alone:
                self._alone = None
            if reply.parts and not self.closed:
                self._out.write(reply.parts)
        if gathers and not self.closed:
            self._out.uncork()
        if not self._reading and not self._out:
            self.resume_reading()

    def writable(self) -> None:
        """Continues sending when the socket accepts bytes again."""
        self.last_active_ms = self._server.now_ms  # the client reads, however slowly
        self._out.flush()
        if not self._out and not self._reading:
            self.resume_reading()

    # Closing

    def close(self, reason: str | None) -> None:
        """Closes the connection immediately; `reason` is None when the client closed it."""
        if self.closed:
            return
        self.closed = True
        self._reading = False
        if reason is not None:
            log.info("closing the connection of %s: %s", self.client_host, reason)
        self._loop.remove_reader(self._fd)
        self._out.close()
        self._socket.close()
        self._release_buffer()
        self._replies.clear()
        self.parked.cancel_all()
        self._server.disconnected(self)
