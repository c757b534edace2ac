"""Stepwise tasks: long work on an event loop in steps of a few milliseconds.

A task is an iterator. Between two of its steps the driver may run other work. A step that is an `OffLoop` would block
the event loop: it waits for the disk, or processes much data in C. The driver calls it on another thread and then
resumes the task. A driver that ignores such a step is correct; the task then runs it inline:

    for step in task:
        if step is not None:
            await loop.run_in_executor(None, step)
"""

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class OffLoop(Generic[Result]):
    """Work that the driver calls. Its result or exception is delivered to the task, not to the driver."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work: Callable[[], Result] | None = work
        self._result: Result | None = None
        self._error: Exception | None = None

    def __call__(self) -> None:
        if self._work is None:
            return
        work, self._work = self._work, None
        try:
            self._result = work()
        except Exception as error:
            self._error = error

    def result(self) -> Result:
        self()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # None only where the work returns None


Step = OffLoop[object] | None
Task = Generator[Step, None, Result]


def off_loop(work: Callable[[], Result]) -> Task[Result]:
    """Runs `work` off the loop: `value = yield from off_loop(work)` within a task."""
    step: OffLoop[Result] = OffLoop(work)
    yield step  # type: ignore[misc]  # the driver calls it and never looks at the result
    return step.result()


def run_through(task: Task[Result]) -> Result:
    """Runs all steps inline and returns the result. For threads without an event loop."""
    while True:
        try:
            step = next(task)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if step is not None:
            step()
