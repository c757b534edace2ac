"""Calls as spans, where they are traced: counted as ever, and named by their method."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.rpc.failures import Status
from headrace.rpc.figures import CallFigures, Carrier, Outcome
from headrace.telemetry.tracing import CARRIED, Tracer

# What is the server's fault, as OpenTelemetry has it.
FAULTS = frozenset(
    {
        Status.UNKNOWN,
        Status.DEADLINE_EXCEEDED,
        Status.UNIMPLEMENTED,
        Status.INTERNAL,
        Status.UNAVAILABLE,
        Status.DATA_LOSS,
    }
)


class TracedCalls:
    def __init__(self, figures: CallFigures, tracer: Tracer) -> None:
        self._figures, self._tracer = figures, tracer

    @contextmanager
    def call(self, service: str, method: str, sent: Carrier) -> Iterator[Outcome]:
        carrier = {str(key): str(value) for key, value in sent() or () if key in CARRIED}
        with self._tracer.span(f"{service}/{method}", carrier) as span:
            span.set("rpc.system", "grpc")
            span.set("rpc.service", service)
            span.set("rpc.method", method)
            with self._figures.call(service, method, sent) as outcome:
                try:
                    yield outcome
                finally:
                    span.set("rpc.grpc.status_code", int(outcome.status.value[0]))
                    if outcome.status in FAULTS:
                        span.failed(outcome.status.name)
