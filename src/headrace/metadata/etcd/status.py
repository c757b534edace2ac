"""How a gRPC call ends: its status, and the error that carries one. No I/O.

CallFailed            the call ended with another status than OK
└── ChannelClosed     because this side has closed the connection under it
"""

from collections.abc import Mapping
from enum import IntEnum
from urllib.parse import unquote


class Status(IntEnum):
    """As gRPC numbers them."""

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


# What gRPC makes of an answer that has no gRPC status: some proxy or web server gave it. All others are UNKNOWN.
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
    """`may_have_begun`: whether the peer can have acted on the call."""

    def __init__(self, status: Status, details: str, *, may_have_begun: bool = True) -> None:
        super().__init__(f"{status.name}: {details}")
        self.status = status
        self.details = details
        self.may_have_begun = may_have_begun


class ChannelClosed(CallFailed):
    pass


def failure_in(headers: Mapping[bytes, bytes]) -> CallFailed | None:
    """What the headers and trailers of an answer say together; None if all is well."""
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
