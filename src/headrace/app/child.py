"""A child process that cannot outlive its parent, however the parent ends."""

import fcntl
import os


def end_with_writer(read_end: int, pid: int) -> None:
    """The kernel signals the child when the other end of its standard input closes: when the parent is gone.

    SIGIO ends a process that does not handle it, also one whose event loop is stuck. The usual alternative,
    PR_SET_PDEATHSIG, would fire as soon as the *thread* that started the child ends.
    """
    fcntl.fcntl(read_end, fcntl.F_SETOWN, pid)
    fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)
