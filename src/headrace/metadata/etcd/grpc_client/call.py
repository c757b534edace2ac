"""One gRPC call on an HTTP/2 connection: request messages, response messages, and the status at its end.

CallFailed            the call ended with a status other than OK
└── ChannelClosed     because this process closed the connection

A call determines when it has ended. The channel sends and receives its bytes.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import ceil
from typing import Protocol
from urllib.parse import unquote

from headrace.metadata.etcd.grpc_client.framing import MessageSplitter, message_frame


class Status(IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# gRPC's statuses for a response without one, which a proxy or web server sent. All others are UNKNOWN.
_OF_HTTP = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}
HTTP_OK = 200


class CallFailed(Exception):
    """`may_have_begun`: whether the peer may have executed the call."""

    def __init__(self, status: Status, details: str, *, may_have_begun: bool = True) -> None:
        super().__init__(f"{status.name}: {details}")
        self.status = status
        self.details = details
        self.may_have_begun = may_have_begun


class ChannelClosed(CallFailed):
    pass


def failure_in(headers: Mapping[bytes, bytes]) -> CallFailed | None:
    """Returns the error in the headers and trailers of a response; None if there is none."""
    told = headers.get(b"grpc-status")
    if told is None:
        return CallFailed(*_without_status(_number(headers.get(b":status", b""))))
    try:
        status = Status(_number(told))
    except ValueError:
        status = Status.UNKNOWN
    if status is Status.OK:
        return None
    return CallFailed(status, unquote(headers.get(b"grpc-message", b"").decode("utf-8", "replace"), errors="replace"))


def _without_status(http: int) -> tuple[Status, str]:
    if http == HTTP_OK:
        return Status.UNKNOWN, "the response has no gRPC status"
    return _OF_HTTP.get(http, Status.UNKNOWN), f"HTTP status {http}"


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= 3 else -1


Header = tuple[bytes, bytes]
_GRPC = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"headrace"))
# Flow control limit: a slow reader stops the peer, instead of filling the memory.
UNREAD_BYTES_MAX = 4 * 1024 * 1024


def request_headers(
    place: Sequence[Header], metadata: Sequence[Header], seconds_max: float | None
) -> tuple[Header, ...]:
    """Returns the headers.

    `place`: the pseudo-headers with the destination. The peer cancels the call after `seconds_max`.
    """
    timeout = [(b"grpc-timeout", b"%dm" % ceil(seconds_max * 1000))] if seconds_max is not None else []
    return ((b":method", b"POST"), *place, *_GRPC, *timeout, *metadata)


class MetadataGetter(Protocol):
    """Operations of the channel that a call uses."""

    def push(self) -> None:
        """Sends what has been written, within the peer's flow control window."""

    def welcome_more(self, call: "Call") -> None:
        """Opens the peer's flow control window, unless too many received bytes are unread."""

    def forget(self, call: "Call") -> None:
        """Removes a call that has ended; resets its stream if the peer has not ended it."""


class Call:
    """Asynchronous iterator of the received messages. Raises CallFailed after the last one if the call failed."""

    def __init__(self, carrier: MetadataGetter, headers: Sequence[Header], seconds_max: float | None) -> None:
        self.headers = headers
        self.stream_id = 0  # 0 until it has begun
        self.unsent = bytearray()
        self.is_written = False  # nothing more will be written
        self.unread_bytes = 0
        self.unacknowledged_bytes = 0  # received bytes for which the channel has not opened the peer's window yet
        self._carrier = carrier
        self._answer: dict[bytes, bytes] = {}  # headers and trailers
        self._splitter = MessageSplitter()
        self._messages: deque[bytes] = deque()
        self._is_over = False
        self._failure: CallFailed | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if seconds_max is not None:
            self._deadline = asyncio.get_running_loop().call_later(seconds_max, self._expire, seconds_max)

    def write(self, message: bytes, *, is_last: bool = False) -> None:
        if self._is_over:
            return  # the reader gets the error
        self.unsent += message_frame(message)
        self.is_written = is_last
        self._carrier.push()

    def __aiter__(self) -> "Call":
        return self

    async def __anext__(self) -> bytes:
        while not self._messages and not self._is_over:
            assert self._waiting is None, "a call has one reader"
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if self._messages:
            message = self._messages.popleft()
            self.unread_bytes -= len(message)
            if not self._is_over:
                self._carrier.welcome_more(self)
            return message
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    def cancel(self, why: CallFailed | None = None) -> None:
        """Ends the call without waiting for the peer. Has no effect if it has ended."""
        self.finish(why or CallFailed(Status.CANCELLED, "cancelled", may_have_begun=self.has_begun))

    @property
    def has_begun(self) -> bool:
        return self.stream_id != 0

    # Called by the channel

    def take_headers(self, headers: Sequence[Header]) -> None:
        """Adds the headers before the messages, or the trailers after them."""
        self._answer.update(headers)
        if self._answer.get(b":status") != b"%d" % HTTP_OK:
            self.finish(failure_in(self._answer))

    def take_data(self, data: bytes) -> None:
        for message in self._splitter.split(data):
            self._messages.append(message)
            self.unread_bytes += len(message)
            self._wake()

    def take_end(self) -> None:
        failure = failure_in(self._answer)
        if failure is None and not self._splitter.is_between_messages:
            failure = CallFailed(Status.INTERNAL, "the response ends in the middle of a message")
        self.finish(failure)

    def finish(self, failure: CallFailed | None) -> None:
        if self._is_over:
            return
        self._is_over, self._failure = True, failure
        if self._deadline is not None:
            self._deadline.cancel()
        self._wake()
        self._carrier.forget(self)

    def _expire(self, seconds: float) -> None:
        details = f"no response within {seconds:g} s"
        self.finish(CallFailed(Status.DEADLINE_EXCEEDED, details, may_have_begun=self.has_begun))

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
