"""Whether a client has read the response that it was sent, as far as its connection shows.

A client that hangs up in the middle of a response answers what still arrives with a reset. A response that the client's
kernel has received and its program has not is seen too, where client and gateway share a machine or the client's
kernel resets the connection. What a proxy in between has received counts as read.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.gateway.bodies import Disconnected, Scope
from headrace.gateway.problems import Problem

Result = TypeVar("Result")

_KEY = "headrace.unread"
_PIPELINED = "headrace.pipelined"
_TRANSPORT = "headrace.transport"
# Of Linux's tcp_info, the first byte; TCP_CLOSE is what a reset leaves.
_TCP_CLOSE = 7
_INT = struct.Struct("i")


def unread(scope: Scope) -> asyncio.Event:
    """An event that is set when the request's connection ends before its client has read the whole response."""
    event: asyncio.Event = scope.setdefault(_KEY, asyncio.Event())
    return event


async def while_connected(scope: Scope, work: Coroutine[Any, Any, Result]) -> Result:
    """The work's result. Cancels it and raises Disconnected when the client hangs up before it is done."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(unread(scope).wait())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def report_unread(scope: Scope) -> None:
    """The connection has ended, and the client had not read the response to this request.

    That may be before the request is looked into, so the event may have to wait there for it.
    """
    unread(scope).set()


def note_transport(scope: Scope, transport: asyncio.Transport) -> None:
    scope[_TRANSPORT] = transport


def abort(scope: Scope) -> None:
    """End the request's connection at once, with what has not been sent."""
    transport = scope.get(_TRANSPORT)
    if transport is not None:
        transport.abort()


def note_pipelined(scope: Scope) -> None:
    """The request came before the response to the one before it was sent."""
    scope[_PIPELINED] = True


def check_not_pipelined(scope: Scope) -> None:
    """Problem 409 for a request that acknowledges a response which its client cannot have received."""
    if scope.get(_PIPELINED):
        raise Problem(
            409,
            "this request came before the response to the one before it was sent, so it cannot acknowledge it: "
            "wait for each response of a consumer",
        )


def has_unread_bytes(transport: asyncio.Transport) -> bool:
    """Whether the client, which has hung up, has left something of what was sent. Only while the socket is open."""
    if transport.get_write_buffer_size():
        return True
    connection = transport.get_extra_info("socket")
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    (unacknowledged,) = _INT.unpack(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
    return bool(state == _TCP_CLOSE or unacknowledged > 0)
