"""Child processes that cannot outlive their parent, however it ends."""

import asyncio
import fcntl
import os
import select
import signal


def kill_when_pipe_closes(read_end: int, pid: int, by: signal.Signals = signal.SIGIO) -> None:
    """Makes the kernel signal the child when the other end of its standard input closes, as when the parent ends.

    SIGIO ends a process that does not handle it, also one whose event loop is stuck. The usual alternative,
    PR_SET_PDEATHSIG, would fire as soon as the *thread* that started the child ends. `by` is another signal for
    programs that ignore SIGIO, as those written in Go do.
    """
    fcntl.fcntl(read_end, fcntl.F_SETOWN, pid)
    if by != signal.SIGIO:
        fcntl.fcntl(read_end, fcntl.F_SETSIG, by)
    fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)


async def stop_child(process: asyncio.subprocess.Process, seconds_max: float) -> bool:
    """Stops a child. Returns when it has ended; False if it took too long and was killed."""
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
    """Returns whether the descriptor becomes readable in time.

    Uses no `select`, which is limited to the first 1,024 descriptors.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
