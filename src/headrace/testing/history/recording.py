"""Records a history while it happens: from many threads, and to files that survive a `kill -9` of the writer."""

import os
import threading
from collections.abc import Iterable
from itertools import count
from types import TracebackType

from headrace.testing.history.events import Event, from_line, to_line


class History:
    """Events in the order in which they were recorded.

    With a `path`, every event is in that file before `record` returns. A killed process leaves a complete file
    behind, so a history of several processes is the union of their files (`read_history`).
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, first_value: int = 0) -> None:
        """Creates an empty history.

        `first_value`: processes that share a topic use distant first values, so that no value is sent twice.
        """
        self._events: list[Event] = []
        self._values = count(first_value)
        self._lock = threading.Lock()
        self._file = -1 if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def record(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            if self._file >= 0:
                line = (to_line(event) + "\n").encode()
                written = os.write(self._file, line)
                assert written == len(line), "a history with half a line proves nothing"

    def new_value(self) -> int:
        with self._lock:
            return next(self._values)

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "History":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_history(paths: Iterable[str | os.PathLike[str]]) -> list[Event]:
    """Returns the events of several files.

    An incomplete last line is skipped: the operation that it describes had not begun.
    """
    events: list[Event] = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            events += [from_line(line) for line in file if line.endswith("\n")]
    return events
