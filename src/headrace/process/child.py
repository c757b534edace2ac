"""A child process that cannot outlive its parent, however the parent ends."""

import asyncio
import fcntl
import os
import select
import signal


def kill_when_pipe_closes(read_end: int, pid: int, by: signal.Signals = signal.SIGIO) -> None:
    """The kernel signals the child when the other end of its standard input closes: when the parent is gone.

    SIGIO ends a process that does not handle it, also one whose event loop is stuck. The usual alternative,
    PR_SET_PDEATHSIG, would fire as soon as the *thread* that started the child ends. `by` is another signal for
    programs that ignore SIGIO, as those written in Go do.
    """
    fcntl.fcntl(read_end, fcntl.F_SETOWN, pid)
    if by != signal.SIGIO:
        fcntl.fcntl(read_end, fcntl.F_SETSIG, by)
    fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)


async def stop_child(process: asyncio.subprocess.Process, seconds_max: float) -> bool:
    """Returns when it has ended: False if it took too long and was killed."""
    if process.returncode is not None:
        return True
    process.terminate()
    try:
        async with asyncio.timeout(seconds_max):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return True


def readable_within(descriptor: int, seconds: float) -> bool:
    """Whether something can be read before the time is over. Not `select`, which knows the first 1,024 descriptors."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
