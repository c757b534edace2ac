"""Telemetry of the broker and gRPC processes: metrics, health checks and the sockets that serve them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.config.settings import split_address
from headrace.model.errors import InvalidConfig
from headrace.telemetry.exporter import Telemetry, TelemetryServer
from headrace.telemetry.health import Checks
from headrace.telemetry.loop_lag import LoopLag
from headrace.telemetry.metrics import MetricFamily
from headrace.telemetry.process_sampler import ProcessMetrics

if TYPE_CHECKING:
    from headrace.broker.server import Broker

Families = Callable[[], Awaitable[list[MetricFamily]]]
OwnChecks = Callable[[], Checks]


class ProcessTelemetry:
    """Metrics and checks of one process. `await start()` returns when they can be requested."""

    def __init__(self, part: str, families: Families, checks: OwnChecks) -> None:
        self._lag = LoopLag()
        self._process = ProcessMetrics(part, self._lag)
        self._families, self._checks = families, checks
        self.server = TelemetryServer(Telemetry(self.families, self.checks))

    async def start(self, socket_name: str | None, address: str = "") -> tuple[str, int] | None:
        """Starts to serve; returns the listening address for clients other than the gateway, if one is configured."""
        self._lag.start()
        if socket_name is not None:
            await self.server.listen_for_gateway(socket_name)
        if not address:
            return None
        try:
            return await self.server.listen(*split_address(address))
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidConfig(f"--metrics {address}: {reason}; choose another HOST:PORT, or leave it out") from error

    async def families(self) -> list[MetricFamily]:
        return [*await self._families(), *self._process.families()]

    async def checks(self) -> Checks:
        return {**self._checks(), "loop": self._lag.check()}

    async def stop(self) -> None:
        self._lag.stop()
        await self.server.close()


def broker_telemetry(part: str, broker: "Broker") -> ProcessTelemetry:
    async def families() -> list[MetricFamily]:
        # In a thread, because the modules of groups and transactions take some milliseconds to import the first time.
        report = await asyncio.to_thread(_report_module)
        return await report(broker)

    def checks() -> Checks:
        from headrace.broker.reporting.health_checks import checks_of

        return checks_of(broker)

    return ProcessTelemetry(part, families, checks)


def _report_module() -> "Callable[[Broker], Awaitable[list[MetricFamily]]]":
    from headrace.broker.reporting.broker_report import families_of

    return families_of
