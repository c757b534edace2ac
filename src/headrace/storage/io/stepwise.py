"""Long work in short steps, for a loop that has other things to do.

A task is an iterator. Between two of its steps a few milliseconds of work have happened, and whoever drives it may
do something else. A step that is an `OffLoop` is work that would hold up the loop all by itself: waiting for the
disk, or crunching a big piece in C. The driver calls it on another thread and then goes on; one that does not
bother only waits longer:

    for step in task:
        if step is not None:
            await loop.run_in_executor(None, step)
"""

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class OffLoop(Generic[Result]):
    """Work to be called by the driver. What it returns or raises is met by the task, not by the driver."""

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
    """`value = yield from off_loop(work)` within a task."""
    step: OffLoop[Result] = OffLoop(work)
    yield step  # type: ignore[misc]  # the driver calls it and never looks at the result
    return step.result()


def run_through(task: Task[Result]) -> Result:
    """All steps at once, for those who have nothing else to do."""
    while True:
        try:
            step = next(task)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if step is not None:
            step()
