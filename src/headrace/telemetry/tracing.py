"""Tracing interface of REST and gRPC, and its implementation with OpenTelemetry.

OpenTelemetry is imported only here, and only if tracing is enabled. Export and sampling are configured by
OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and others.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from headrace import __version__
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider


# Headers with a caller's trace context (W3C Trace Context).
CARRIED = ("traceparent", "tracestate")


class Span(Protocol):
    def name(self, name: str) -> None:
        """Renames the span, once its operation is known."""

    def set(self, key: str, value: str | int) -> None: ...

    def failed(self, reason: str) -> None: ...


class Tracer(Protocol):
    def span(self, name: str, carrier: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Traces a request for the duration of a `with` block; a child of the caller's span if `carrier` has one."""


NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check_installed() -> None:
    """Raises InvalidConfig if OpenTelemetry is not installed."""
    for name in NEEDED:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise InvalidConfig("tracing.enabled needs OpenTelemetry: pip install 'headrace[otel]', or set it to false")


class OtelSpan:
    def __init__(self, span: "trace.Span") -> None:
        self._span = span

    def name(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, key: str, value: str | int) -> None:
        self._span.set_attribute(key, value)

    def failed(self, reason: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_status(Status(StatusCode.ERROR, reason))


class OtelTracer:
    """Exports spans in batches, on a thread of OpenTelemetry; `close` exports the last ones."""

    def __init__(self, part: str) -> None:
        from opentelemetry.propagators.textmap import TextMapPropagator
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = _provider(part)
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._propagator: TextMapPropagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, carrier: Mapping[str, str]) -> Iterator[OtelSpan]:
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(dict(carrier)) if carrier else None
        with self._tracer.start_as_current_span(name, context=parent, kind=SpanKind.SERVER) as span:
            yield OtelSpan(span)

    def close(self) -> None:
        self._provider.shutdown()


def _provider(part: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: f"headrace-{part}"}
    provider = TracerProvider(resource=Resource.create({**named, SERVICE_VERSION: __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
