"""Progress output: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Protocol


class Progress(Protocol):
    def __enter__(self) -> "Progress": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def doing(self, what: str) -> None:
        """Shows the current step."""

    def done(self, steps: int = 1) -> None:
        """Counts finished samples."""

    def say(self, line: str) -> None:
        """Prints a line."""


class PlainProgress:
    """One line for each sample, with the time since the start."""

    def __init__(self, total: int) -> None:
        self._total, self._count, self._start = total, 0, time.monotonic()

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def doing(self, what: str) -> None:
        self.say(f"[{self._count + 1}/{self._total}] {what}")

    def done(self, steps: int = 1) -> None:
        self._count += steps

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self._start:7.1f} s  {line}", flush=True)


class BarProgress:
    """A bar with the time left; results scroll by above it."""

    def __init__(self, total: int) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        text = TextColumn("{task.description}", table_column=None)
        self._bar = RichProgress(BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), text)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "BarProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def doing(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def done(self, steps: int = 1) -> None:
        self._bar.advance(self._task, steps)

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False)


def progress(total: int) -> Progress:
    return BarProgress(total) if sys.stdout.isatty() else PlainProgress(total)
