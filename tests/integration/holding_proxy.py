"""A wire between a client and a broker that holds back what the client says, and delivers it later.

Decides when bytes go on, and never which: a request arrives whole and unchanged, only late. Answers come at once.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
END_SECONDS_MAX = 10.0


class HoldingProxy:
    def __init__(self, port: int) -> None:
        """In front of the broker that listens on this port."""
        self._target = port
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.held_bytes = 0
        self._start(self._accept)

    def hold(self) -> None:
        self._may_pass.clear()

    def let_go(self) -> None:
        self._may_pass.set()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((HOST, self._target))
                self._sockets += [near, far]
                self._start(self._forward, near, far)
                self._start(self._back, far, near)

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(CHUNK_BYTES):
                self.held_bytes += len(data)
                self._may_pass.wait()
                self.held_bytes -= len(data)
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    @staticmethod
    def _back(far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(CHUNK_BYTES):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "HoldingProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(END_SECONDS_MAX)
        for one in (self._listener, *self._sockets):
            one.close()
