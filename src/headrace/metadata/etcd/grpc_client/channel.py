"""One HTTP/2 connection to an etcd member, and gRPC calls on it.

Implements flow control: the peer's windows limit what is sent, and readers that keep up open the windows of this
side. Detects the loss of the connection, which ends every call on it. The owner of the channel selects the member and
handles failures. Runs in callbacks of the event loop, without a task.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error, NoSuchStreamError

from headrace.config.settings import split_address
from headrace.metadata.etcd.grpc_client.call import (
    UNREAD_BYTES_MAX,
    Call,
    CallFailed,
    ChannelClosed,
    Header,
    Status,
    request_headers,
)
from headrace.metadata.etcd.grpc_client.framing import BrokenPeer, FrameSplitter, last_stream_if_goaway
from headrace.metadata.etcd.grpc_client.http2 import ALPN, WINDOW_BYTES, Http2, KeepalivePing

if TYPE_CHECKING:
    import ssl

PING_AFTER_SECONDS = 10.0  # of inactivity; etcd rejects pings more often than every 5 s
PING_ANSWER_SECONDS_MAX = 5.0


class Channel(asyncio.Protocol):
    """Created by `Channel.connect`."""

    def __init__(self, target: str, ping_after_seconds: float, ping_answer_seconds_max: float) -> None:
        self.target = target
        self.refusal = ""  # why no further calls are accepted; those in flight may still complete
        self.is_lost = False
        self._ping_after_seconds = ping_after_seconds
        self._ping_answer_seconds_max = ping_answer_seconds_max
        self._transport: asyncio.Transport | None = None
        self._scheme = b"http"
        self._http = Http2()
        self._frames = FrameSplitter()
        self._calls: dict[int, Call] = {}  # by their streams
        # those that have not begun: without a message, or above the limit of concurrent streams
        self._queue: dict[Call, None] = {}
        self._pulse: KeepalivePing | None = None
        self._failure_kind = CallFailed
        self._idle = asyncio.Event()
        self._idle.set()
        self._greeted = asyncio.Event()  # the peer has sent its settings, or the connection is lost
        self._gone = asyncio.Event()  # the socket is closed

    @classmethod
    async def connect(
        cls,
        target: str,
        tls: "ssl.SSLContext | None" = None,
        *,
        seconds_max: float,
        ping_after_seconds: float = PING_AFTER_SECONDS,
        ping_answer_seconds_max: float = PING_ANSWER_SECONDS_MAX,
    ) -> "Channel":
        """Returns when the peer has sent its settings.

        A suspended process accepts connections, but does not send settings.
        """
        channel = cls(target, ping_after_seconds, ping_answer_seconds_max)
        host, port = split_address(target)
        try:
            async with asyncio.timeout(seconds_max):
                await asyncio.get_running_loop().create_connection(lambda: channel, host, port, ssl=tls)
                await channel._greeted.wait()
        except (OSError, UnicodeError) as error:  # includes an invalid certificate and a timeout
            channel._lose(str(error) or "no response")
        except BaseException:
            await channel.close()
            raise
        if channel.is_lost:
            await channel.close()
            raise channel._failure(may_have_begun=False)
        return channel

    async def ask(self, method: str, request: bytes, metadata: Sequence[Header] = (), *, seconds_max: float) -> bytes:
        """Runs a unary call: one request message, one response message."""
        call = self.open(method, metadata, seconds_max=seconds_max)
        try:
            call.write(request, is_last=True)
            answer = [message async for message in call]
        finally:
            call.cancel()
        if len(answer) != 1:
            raise CallFailed(Status.INTERNAL, f"received {len(answer)} messages instead of one")
        return answer[0]

    def open(self, method: str, metadata: Sequence[Header] = (), *, seconds_max: float | None = None) -> Call:
        """Returns a call that streams messages in both directions. It begins with the first message that is written."""
        place = [(b":scheme", self._scheme), (b":authority", self.target.encode()), (b":path", method.encode())]
        call = Call(self, request_headers(place, metadata, seconds_max), seconds_max)
        if self.refusal:
            call.finish(self._failure(may_have_begun=False))
        else:
            self._queue[call] = None
            self._idle.clear()
        return call

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Accepts no new calls.

        Those in flight may complete within the grace period, and then fail with ChannelClosed.
        """
        self.refusal = self.refusal or "the connection is being closed"
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._idle.wait()
        finally:
            self._lose("the connection was closed", ChannelClosed)
        if self._transport is not None:
            await self._gone.wait()

    # Called by calls

    def push(self) -> None:
        if self.is_lost or self._transport is None or self._transport.is_closing():
            return  # calls that have not begun can no longer begin
        try:
            while self._queue and self._http.has_room_for_a_stream:
                self._begin(next(iter(self._queue)))
            for call in self._calls.values():
                self._send(call)
        except H2Error as error:  # the stream ids are used up
            self._lose(f"{self.target}: the connection accepts no more requests: {error}")
        self._flush()

    def welcome_more(self, call: Call) -> None:
        if call.unread_bytes <= UNREAD_BYTES_MAX and call.unacknowledged_bytes >= WINDOW_BYTES // 2:
            self._http.increment_flow_control_window(call.unacknowledged_bytes, call.stream_id)
            call.unacknowledged_bytes = 0
            self._flush()

    def forget(self, call: Call) -> None:
        self._queue.pop(call, None)
        was_begun = self._calls.pop(call.stream_id, None) is not None
        if not self._calls and not self._queue:
            self._idle.set()
        if was_begun and not self.is_lost:
            with suppress(NoSuchStreamError):  # the stream has ended on both sides
                self._http.reset_stream(call.stream_id, ErrorCodes.CANCEL)
            self.push()  # another call may begin now

    def _begin(self, call: Call) -> None:
        stream_id = self._http.get_next_available_stream_id()
        self._http.send_headers(stream_id, call.headers)
        del self._queue[call]
        call.stream_id = stream_id
        self._calls[stream_id] = call

    def _send(self, call: Call) -> None:
        while call.unsent:
            count = min(self._http.room_in_a_frame(call.stream_id), len(call.unsent))
            if count <= 0:
                return  # until the peer opens its window
            chunk = bytes(call.unsent[:count])
            del call.unsent[:count]
            self._http.send_data(call.stream_id, chunk, end_stream=call.is_written and not call.unsent)

    def _flush(self) -> None:
        data = self._http.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # asyncio has set TCP_NODELAY
        encrypted = transport.get_extra_info("ssl_object")
        if self.is_lost:
            self._transport.abort()
        elif encrypted is not None and encrypted.selected_alpn_protocol() != ALPN:
            self._lose(f"{self.target} does not speak HTTP/2")
        else:
            self._scheme = b"https" if encrypted is not None else b"http"
            self._http.begin()
            self._flush()
            self._pulse = KeepalivePing(
                ask_after_seconds=self._ping_after_seconds,
                answer_seconds_max=self._ping_answer_seconds_max,
                is_wanted=lambda: bool(self._calls),  # etcd closes connections that send pings without a call
                ask=self._ping,
                give_up=self._lose,
            )

    def data_received(self, data: bytes) -> None:
        assert self._pulse is not None
        self._pulse.heard()
        try:
            for frame in self._frames.split(data):
                self._take(frame)
        except (H2Error, BrokenPeer) as error:
            self._lose(f"{self.target} does not speak gRPC as we do: {error}")
        self._flush()

    def eof_received(self) -> None:
        self._lose(f"{self.target} has closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(f"the connection to {self.target} broke: {exc or 'it was closed'}")
        self._gone.set()

    def _take(self, frame: bytes) -> None:
        # h2 receives one frame at a time, because it loses the events of preceding frames if one is malformed. It never
        # receives a GOAWAY: it would reject the responses to calls in flight, which follow it.
        last_stream_id = last_stream_if_goaway(frame)
        if last_stream_id is not None:
            self._peer_leaves(last_stream_id)
        elif not self.is_lost:
            for event in self._http.receive_data(frame):
                self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, RemoteSettingsChanged):
            self._greeted.set()
            self.push()
        elif isinstance(event, WindowUpdated):
            self.push()
        elif isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, (ResponseReceived, TrailersReceived, StreamEnded, StreamReset)):
            call = self._calls.get(event.stream_id)
            if call is None:
                pass  # it was canceled
            elif isinstance(event, StreamReset):
                refused = event.error_code == ErrorCodes.REFUSED_STREAM  # HTTP/2: the request was not processed
                details = f"{self.target} has broken off the call: code {event.error_code:d}"
                call.finish(CallFailed(Status.UNAVAILABLE, details, may_have_begun=not refused))
            elif isinstance(event, StreamEnded):
                call.take_end()
            else:
                call.take_headers(cast(Sequence[Header], event.headers))

    def _take_data(self, event: DataReceived) -> None:
        self._http.acknowledge(event.flow_controlled_length)
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.take_data(event.data)
            call.unacknowledged_bytes += event.flow_controlled_length
            if event.stream_ended is None:
                self.welcome_more(call)

    def _peer_leaves(self, last_stream_id: int) -> None:
        """Handles a GOAWAY.

        The peer responds to the calls up to the last stream in it, and then closes the connection.
        """
        self.refusal = self.refusal or f"{self.target} is shutting down"
        for call in (*self._queue, *self._calls.values()):
            if not call.has_begun or call.stream_id > last_stream_id:
                call.finish(self._failure(may_have_begun=False))

    def _ping(self) -> None:
        self._http.ask_for_a_sign()
        self._flush()

    def _lose(self, reason: str, kind: type[CallFailed] = CallFailed) -> None:
        """Ends the connection and all calls immediately; the first reason is kept."""
        if self.is_lost:
            return
        self.is_lost, self.refusal, self._failure_kind = True, reason, kind
        if self._pulse is not None:
            self._pulse.stop()
        for call in (*self._queue, *self._calls.values()):
            call.finish(self._failure(may_have_begun=call.has_begun))
        if self._transport is not None:
            self._flush()
            self._transport.abort()  # not close(), which would wait until a suspended peer has read everything
        self._greeted.set()

    def _failure(self, *, may_have_begun: bool) -> CallFailed:
        return self._failure_kind(Status.UNAVAILABLE, self.refusal, may_have_begun=may_have_begun)
