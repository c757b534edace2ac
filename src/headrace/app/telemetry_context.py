"""How a process of a node is watched: where it tells its figures, how it writes its log, whether it traces.

One value for all processes of a node, handed down by the one that starts them.
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
    """`sockets` has, by the part of the node, the name of the socket on which it answers its gateway."""

    log_format: str = "text"
    tracing: bool = False
    sockets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: TelemetrySettings, *parts: str) -> "TelemetryContext":
        """Names that nobody can guess: whoever shares the machine cannot take them before us."""
        token = token_hex(16)
        sockets = {part: f"headrace-{token}-{part}" for part in parts}
        return cls(settings.log_format, settings.tracing, sockets)

    def tracer(self, part: str) -> "OtelTracer | None":
        """Only for who asked: OpenTelemetry takes longer to import than a broker takes to start."""
        if not self.tracing:
            return None
        from headrace.telemetry.tracing import OtelTracer

        return OtelTracer(part)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "TelemetryContext":
        return cls(**json.loads(text))
