"""The port for traces: what REST and gRPC ask of whoever keeps them. Without one, they never think of it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

# The headers by which a caller says which trace a request belongs to (W3C Trace Context).
CARRIED = ("traceparent", "tracestate")


class Span(Protocol):
    def name(self, name: str) -> None:
        """What it turned out to be."""

    def set(self, key: str, value: str | int) -> None: ...

    def failed(self, reason: str) -> None: ...


class Tracer(Protocol):
    def span(self, name: str, carrier: Mapping[str, str]) -> AbstractContextManager[Span]:
        """A request, from now to the end of the block; a child of the caller's span if `carrier` names one."""
