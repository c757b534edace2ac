"""Whose connection is being cut: told by the kernel's table of connections."""

import os
import socket
import subprocess
import sys

from headrace.testing.local.network_links import HOST, Caller


def test_two_callers_from_one_port_are_told_apart_by_where_they_call() -> None:
    """On a busy machine most ports are shared like that."""
    with (
        socket.create_server((HOST, 0)) as one,
        socket.create_server((HOST, 0)) as other,
        connected(one, 0) as lent,
        connected(other, lent.getsockname()[1]) as kept,
    ):
        port = lent.getsockname()[1]
        assert kept.getsockname()[1] == port
        reads_until_closed = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(reads_until_closed, stdin=subprocess.PIPE, pass_fds=[lent.fileno()]) as holder:
            lent.close()  # only that process has it now
            pids = {1: holder.pid, 2: os.getpid()}
            assert Caller(port, one.getsockname()[1], lambda: pids)() == 1
            assert Caller(port, other.getsockname()[1], lambda: pids)() == 2


def connected(server: socket.socket, from_port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((HOST, from_port))
    client.connect(server.getsockname())
    return client
