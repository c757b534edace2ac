"""What the HTTP side counts: requests by route and status, how long they took, who listens."""

from collections import Counter
from collections.abc import Iterator

from headrace.telemetry import gateway_metrics as metrics
from headrace.telemetry.figures import Family, Histogram, one

# What no route has taken: a label of its own, so that no client can make one up.
NO_ROUTE = "none"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"


class HttpFigures:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[tuple[str, str], Histogram] = {}
        self.under_way = 0
        self.streams = 0

    def served(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else OTHER_METHOD
        self._requests[method, route, status] += 1
        durations = self._durations.get((method, route))
        if durations is None:
            durations = self._durations[method, route] = Histogram(metrics.HTTP_DURATION.bounds)
        durations.add(seconds)

    def families(self) -> Iterator[Family]:
        counts = sorted(self._requests.items())
        yield Family(
            metrics.HTTP_REQUESTS, [((method, route, str(status)), count) for (method, route, status), count in counts]
        )
        yield Family(metrics.HTTP_DURATION, [(labels, one.value()) for labels, one in sorted(self._durations.items())])
        yield one(metrics.HTTP_UNDER_WAY, self.under_way)
        yield one(metrics.HTTP_STREAMS, self.streams)
