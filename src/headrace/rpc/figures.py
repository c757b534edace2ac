"""What the gRPC side counts: calls by method and status, how long they took, and which are open."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any, Protocol

from headrace.rpc.failures import Status
from headrace.telemetry import gateway_metrics as metrics
from headrace.telemetry.figures import Family, Histogram, by_label

# The metadata of a call, asked for only by who wants it: reading it costs more than counting.
Carrier = Callable[[], Any]


class Observer(Protocol):
    """Whoever wants to know of calls."""

    def call(self, service: str, method: str, sent: Carrier) -> AbstractContextManager["Outcome"]: ...


class Outcome:
    """What a call ends with; CANCELLED if nobody says otherwise: then its client has gone."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status = Status.CANCELLED


class CallFigures:
    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, Histogram] = {}
        self._open: Counter[str] = Counter()

    @contextmanager
    def call(self, service: str, method: str, sent: Carrier) -> Iterator[Outcome]:
        """For as long as the call lasts; whoever serves it says how it ended."""
        outcome = Outcome()
        self._open[method] += 1
        began = perf_counter()
        try:
            yield outcome
        finally:
            self._open[method] -= 1
            self._calls[method, outcome.status.name] += 1
            if method not in self._durations:
                self._durations[method] = Histogram(metrics.GRPC_DURATION.bounds)
            self._durations[method].add(perf_counter() - began)

    def families(self) -> Iterator[Family]:
        yield Family(metrics.GRPC_CALLS, [(labels, count) for labels, count in sorted(self._calls.items())])
        yield by_label(
            metrics.GRPC_DURATION, [(method, one.value()) for method, one in sorted(self._durations.items())]
        )
        yield by_label(metrics.GRPC_UNDER_WAY, sorted(self._open.items()))
