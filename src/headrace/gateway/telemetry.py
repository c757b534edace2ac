"""The node as its HTTP port tells it: this process, and those beside it that were named to it at the start.

A gateway that runs alone has no broker beside it: it tells of itself, and that the broker's front door answers.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.gateway.figures import HttpFigures
from headrace.telemetry import gateway_metrics as metrics
from headrace.telemetry.figures import Family, by_label, merge, one
from headrace.telemetry.health import Check, Checks, Status
from headrace.telemetry.loop_lag import LoopLag
from headrace.telemetry.neighbour import Silent, Told, ask
from headrace.telemetry.process import ProcessFigures

if TYPE_CHECKING:
    from headrace.gateway.services import Services

PART = "gateway"


class NodeTelemetry:
    """`neighbours` has the sockets of the other processes, by their part of the node."""

    def __init__(self, figures: HttpFigures, neighbours: Mapping[str, str]) -> None:
        self._figures, self._neighbours = figures, neighbours
        self.lag = LoopLag()
        self._process = ProcessFigures(PART, self.lag)

    async def families(self, services: "Services") -> list[Family]:
        """Of all processes; of those that are silent, that they are."""
        told = await self._ask_all()
        ups = [(part, int(isinstance(answer, Told))) for part, answer in told.items()]
        own = [
            *self._figures.families(),
            one(metrics.HTTP_CONSUMERS, len(services.consumers)),
            by_label(metrics.UPSTREAM_WAITING, [(PART, services.publisher.under_way)]),
            by_label(metrics.UP, [(PART, 1), *ups]),
            *self._process.families(),
        ]
        return merge([*(answer.families for answer in told.values() if isinstance(answer, Told)), own])

    async def checks(self) -> Checks:
        """Each under the name of its process: `broker.disk`."""
        checks: Checks = {f"{PART}.loop": self.lag.check()}
        for part, answer in (await self._ask_all()).items():
            if isinstance(answer, Told):
                checks |= {f"{part}.{name}": check for name, check in answer.checks.items()}
            else:
                checks[f"{part}.answers"] = Check(
                    Status.DEGRADED, f"this process does not report its metrics: {answer}"
                )
        return checks

    async def _ask_all(self) -> dict[str, Told | Silent]:
        async def asked(name: str) -> Told | Silent:
            try:
                return await ask(name)
            except Silent as reason:
                return reason

        answers = await asyncio.gather(*(asked(name) for name in self._neighbours.values()))
        return dict(zip(self._neighbours, answers, strict=True))
