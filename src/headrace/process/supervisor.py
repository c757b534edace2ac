"""Supervises sidecar processes of the broker: started with it, restarted when they end, stopped before it.

Runs on the broker's event loop. Listening sockets are opened here and inherited by the child, so that a used port is
reported at start, and so that clients that connect during a (re)start wait in the kernel's queue instead of being
rejected.
"""

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from headrace.config.settings import join_address
from headrace.model.errors import InvalidConfig
from headrace.process.child import kill_when_pipe_closes, stop_child

log = logging.getLogger(__name__)

# Pauses before a restart, doubling. A process that ran for PROVEN_S is restarted with the shortest pause.
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0
PROVEN_S = 30.0
# Requests in flight are finished first; they wait for the broker for a few seconds at most.
STOP_SECONDS_MAX = 10.0
# Connections that wait during a restart; Linux's default maximum.
BACKLOG = 4096


class PortTaken(InvalidConfig):
    """Another program uses the address."""


def listen(host: str, port: int, flag: str, instead: str) -> socket.socket:
    """Returns a listening socket. Raises InvalidConfig with a remedy if the address cannot be used."""
    made = _bound(host, port, flag, instead)
    try:
        made.listen(BACKLOG)
    except OSError as error:  # another program has bound it at the same time
        made.close()
        raise _unusable(host, port, flag, instead, error) from error
    return made


def reserve(host: str, port: int, flag: str, instead: str) -> socket.socket:
    """Reserves a port that does not listen yet, for a child that must bind it itself.

    Linux lets a second socket bind the address if both set SO_REUSEPORT. This one sets it only after it was bound, so
    that an address in use by another program, shared or not, is detected here.
    """
    made = _bound(host, port, flag, instead)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return made


def _bound(host: str, port: int, flag: str, instead: str) -> socket.socket:
    address = join_address(host, port)
    try:
        # AI_PASSIVE: an empty host is every interface.
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidConfig(f"{flag} {address}: {error.strerror}; write HOST:PORT, e.g. 127.0.0.1:8080") from error
    family, kind, protocol, _, where = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # despite connections in TIME_WAIT
        made.bind(where)
    except OSError as error:
        made.close()
        raise _unusable(host, port, flag, instead, error) from error
    return made


def _unusable(host: str, port: int, flag: str, instead: str, error: OSError) -> InvalidConfig:
    address = join_address(host, port)
    advice = f"choose another with {flag} HOST:PORT, or {instead}"
    if error.errno == errno.EADDRINUSE:
        return PortTaken(f"{address} is taken by another program; {advice}")
    return InvalidConfig(f"{address} cannot be used ({error.strerror}); {advice}")


class Sidecar:
    """One sidecar process. `start` returns at once; the child is supervised until `stop`."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        sockets: Sequence[socket.socket] = (),
        held: Sequence[socket.socket] = (),
    ) -> None:
        """The child inherits `sockets`. `held` stay in this process. All are closed at the end."""
        self._name = name
        self._sockets, self._held = tuple(sockets), tuple(held)
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._alive = -1
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._process is not None and not await stop_child(self._process, STOP_SECONDS_MAX):
            log.warning("the %s did not stop within %.0f s and was killed", self._name, STOP_SECONDS_MAX)
        self._let_go()
        for one in (*self._sockets, *self._held):
            one.close()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S_MIN
        while True:
            began = loop.time()
            try:
                self._process = await self._spawn()
            except OSError as error:
                reason = f"could not be started ({error})"
            else:
                code = await self._process.wait()
                self._let_go()
                reason = f"ended with code {code}"
            pause_s = PAUSE_S_MIN if loop.time() - began >= PROVEN_S else pause_s
            log.warning("the %s %s and is started again in %.1f s", self._name, reason, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _spawn(self) -> asyncio.subprocess.Process:
        alive_read, alive_write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *(word for one in self._sockets for word in ("--listen-fd", str(one.fileno()))),
                stdin=alive_read,
                stdout=subprocess.DEVNULL,
                pass_fds=[one.fileno() for one in self._sockets],
                process_group=0,  # Ctrl-C reaches only the broker, which stops both in order
            )
            kill_when_pipe_closes(alive_read, process.pid)
        except BaseException:
            os.close(alive_write)
            raise
        finally:
            os.close(alive_read)
        self._alive = alive_write
        return process

    def _let_go(self) -> None:
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
