"""Runs long work on the event loop in slices, so that requests do not wait for it."""

import asyncio
from collections.abc import Iterator
from typing import TypeVar

from headrace.storage.io.stepwise import Task

Result = TypeVar("Result")

# Work between two polls of the sockets: a quarter of the 5 ms by which a request may be delayed.
SLICE_S = 0.00125


async def run_in_slices(steps: Iterator[None]) -> None:
    """Runs the steps, and yields to the event loop after every slice."""
    now = asyncio.get_running_loop().time
    until = now() + SLICE_S
    for _ in steps:
        if now() >= until:
            await asyncio.sleep(0)
            until = now() + SLICE_S


async def drive(task: Task[Result]) -> Result:
    """Runs a storage task to its end. Each step is a slice; steps that wait for the disk run in a thread."""
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
