"""Telemetry settings of a node's processes: metrics sockets, log format, tracing.

The process that starts the others passes the same value to all of them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING

from headrace.config.settings import TelemetrySettings

if TYPE_CHECKING:
    from headrace.telemetry.tracing import OtelTracer

BROKER, GATEWAY, GRPC = "broker", "gateway", "grpc"


@dataclass(frozen=True, slots=True)
class TelemetryContext:
    """`sockets` maps each process of the node to the name of its metrics socket for the gateway."""

    log_format: str = "text"
    tracing: bool = False
    sockets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: TelemetrySettings, *parts: str) -> "TelemetryContext":
        """Creates unguessable socket names, so that other users of the host cannot bind them first."""
        token = token_hex(16)
        sockets = {part: f"headrace-{token}-{part}" for part in parts}
        return cls(settings.log_format, settings.tracing, sockets)

    def tracer(self, part: str) -> "OtelTracer | None":
        """Returns a tracer if tracing is enabled; OpenTelemetry takes longer to import than a broker takes to start."""
        if not self.tracing:
            return None
        from headrace.telemetry.tracing import OtelTracer

        return OtelTracer(part)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "TelemetryContext":
        return cls(**json.loads(text))
