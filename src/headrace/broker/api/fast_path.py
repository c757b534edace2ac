"""Shortcuts: a request that says what an earlier one of its connection said need not be read again.

A handler that has answered a request may leave a shortcut with the connection, one for each API. From then on the
shortcut is asked first. It answers as the handler would, or says FALLBACK and has done nothing.

One of them may also take several requests that came in a row as one (`Coalescer`).
"""

from enum import Enum, auto
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from headrace.protocol.frames import Parts
from headrace.telemetry.metrics import Histogram


class _Way(Enum):
    LONG = auto()


FALLBACK: Final = _Way.LONG
LongWay: TypeAlias = Literal[_Way.LONG]


class FastPath(Protocol):
    durations: Histogram  # of the API's requests

    def __call__(self, frame: memoryview) -> Parts | LongWay | None: ...


class CoalescedRequests(NamedTuple):
    """Requests in a row that were handled as one."""

    parts: Parts | None  # their answers, or None if those come later
    end: int  # where the next request begins
    requests: int


class Coalescer(Protocol):
    def run(self, view: memoryview, position: int, end: int, most: int) -> CoalescedRequests | None:
        """Handle the requests that begin at `position` as one; None if that cannot be, and nothing was done."""


Shortcuts: TypeAlias = dict[int, FastPath]  # by the number of the API
