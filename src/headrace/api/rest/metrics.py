"""Metrics of the REST server, and telemetry of its node.

Counts requests by route and status, durations, and open streams. The REST server also reports metrics and health of
the other processes of its node, whose sockets it receives at start. A gateway without a broker on its node reports on
itself and on the reachability of the Kafka listener.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.telemetry import gateway_metrics as metrics
from headrace.telemetry.health import Check, Checks, Status
from headrace.telemetry.loop_lag import LoopLag
from headrace.telemetry.metrics import Histogram, MetricFamily, by_label, merge, one
from headrace.telemetry.process_sampler import ProcessMetrics
from headrace.telemetry.remote_metrics import NoAnswer, RemoteTelemetry, ask

if TYPE_CHECKING:
    from headrace.api.rest.clients import ApiClients


# Label of requests without a route, so that clients cannot create labels.
NO_ROUTE = "none"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"


class HttpMetrics:
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

    def families(self) -> Iterator[MetricFamily]:
        counts = sorted(self._requests.items())
        yield MetricFamily(
            metrics.HTTP_REQUESTS, [((method, route, str(status)), count) for (method, route, status), count in counts]
        )
        yield MetricFamily(
            metrics.HTTP_DURATION, [(labels, one.value()) for labels, one in sorted(self._durations.items())]
        )
        yield one(metrics.HTTP_IN_FLIGHT, self.under_way)
        yield one(metrics.HTTP_STREAMS, self.streams)


PART = "gateway"


class NodeTelemetry:
    """Collects metrics and checks. `neighbours` maps the node's other processes to their telemetry sockets."""

    def __init__(self, figures: HttpMetrics, neighbours: Mapping[str, str]) -> None:
        self._figures, self._neighbours = figures, neighbours
        self.lag = LoopLag()
        self._process = ProcessMetrics(PART, self.lag)

    async def families(self, services: "ApiClients") -> list[MetricFamily]:
        """Returns the metrics of all processes. A process that does not respond is reported as down."""
        told = await self._ask_all()
        ups = [(part, int(isinstance(answer, RemoteTelemetry))) for part, answer in told.items()]
        own = [
            *self._figures.families(),
            one(metrics.HTTP_CONSUMERS, len(services.consumers)),
            by_label(metrics.UPSTREAM_WAITING, [(PART, services.publisher.under_way)]),
            by_label(metrics.UP, [(PART, 1), *ups]),
            *self._process.families(),
        ]
        return merge([*(answer.families for answer in told.values() if isinstance(answer, RemoteTelemetry)), own])

    async def checks(self) -> Checks:
        """Returns the health checks, prefixed with the process name: `broker.disk`."""
        checks: Checks = {f"{PART}.loop": self.lag.check()}
        for part, answer in (await self._ask_all()).items():
            if isinstance(answer, RemoteTelemetry):
                checks |= {f"{part}.{name}": check for name, check in answer.checks.items()}
            else:
                checks[f"{part}.answers"] = Check(
                    Status.DEGRADED, f"this process does not report its metrics: {answer}"
                )
        return checks

    async def _ask_all(self) -> dict[str, RemoteTelemetry | NoAnswer]:
        async def asked(name: str) -> RemoteTelemetry | NoAnswer:
            try:
                return await ask(name)
            except NoAnswer as reason:
                return reason

        answers = await asyncio.gather(*(asked(name) for name in self._neighbours.values()))
        return dict(zip(self._neighbours, answers, strict=True))
