"""Fast paths: handle a request that repeats an earlier one of its connection without parsing it.

A handler that has responded to a request may register a fast path with the connection, one for each API. Later
requests of that API go to the fast path first. It either responds as the handler would, or returns FALLBACK and has
no side effect.

A fast path may also handle several consecutive requests as one (`Coalescer`).
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
    durations: Histogram  # of the requests of the API

    def __call__(self, frame: memoryview) -> Parts | LongWay | None: ...


class CoalescedRequests(NamedTuple):
    """Consecutive requests that were handled as one."""

    parts: Parts | None  # their responses, or None if those are deferred
    end: int  # position of the next request
    requests: int


class Coalescer(Protocol):
    def run(self, view: memoryview, position: int, end: int, most: int) -> CoalescedRequests | None:
        """Handles the requests that begin at `position` as one; returns None, without side effects, if it cannot."""


Shortcuts: TypeAlias = dict[int, FastPath]  # by API key
