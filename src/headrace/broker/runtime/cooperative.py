"""Long work on the loop, a slice at a time, so that no request waits for it."""

import asyncio
from collections.abc import Iterator
from typing import TypeVar

from headrace.storage.io.stepwise import Task

Result = TypeVar("Result")

# Work between two looks at the sockets. A quarter of the 5 ms that a request may be held up.
SLICE_S = 0.00125


async def run_in_slices(steps: Iterator[None]) -> None:
    """Run the steps, letting the loop serve its clients after every slice."""
    now = asyncio.get_running_loop().time
    until = now() + SLICE_S
    for _ in steps:
        if now() >= until:
            await asyncio.sleep(0)
            until = now() + SLICE_S


async def drive(task: Task[Result]) -> Result:
    """Run a task of storage to its end: each step is a slice, and what waits for the disk waits in a thread."""
    while True:
        try:
            step = next(task)
        except StopIteration as end:
            result: Result = end.value
            return result
        if step is None:
            await asyncio.sleep(0)
        else:
            await asyncio.to_thread(step)
