"""gRPC method handlers: binds each method of the .proto to its implementation by name, and applies deadlines, error
mapping, metrics and tracing.

A service with a method that has no implementation, or an implementation without a method, fails when the server is
built.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from headrace.api.grpc.clients import Clients
from headrace.api.grpc.errors import RpcError, Status, end, failed, invalid
from headrace.model.errors import ErrorCode
from headrace.telemetry import gateway_metrics as metrics
from headrace.telemetry.metrics import Histogram, MetricFamily, by_label
from headrace.telemetry.tracing import CARRIED, Tracer

# Returns the metadata of a call. Called only by observers that need it: reading it costs more than counting a call.
MetadataGetter = Callable[[], Any]


class Observer(Protocol):
    """Observes calls, for metrics or tracing."""

    def call(self, service: str, method: str, sent: MetadataGetter) -> AbstractContextManager["Outcome"]: ...


class Outcome:
    """Final status of a call. CANCELLED until the handler sets another one, because a call without a status was
    cancelled.
    """

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status = Status.CANCELLED


class RpcMetrics:
    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, Histogram] = {}
        self._open: Counter[str] = Counter()

    @contextmanager
    def call(self, service: str, method: str, sent: MetadataGetter) -> Iterator[Outcome]:
        """Counts the call as open until the context exits, then records its duration and the outcome that the handler
        set.
        """
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

    def families(self) -> Iterator[MetricFamily]:
        yield MetricFamily(metrics.GRPC_CALLS, [(labels, count) for labels, count in sorted(self._calls.items())])
        yield by_label(
            metrics.GRPC_DURATION, [(method, one.value()) for method, one in sorted(self._durations.items())]
        )
        yield by_label(metrics.GRPC_IN_FLIGHT, sorted(self._open.items()))


Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Clients, Any], Awaitable[Message]]
# Writes one response message, or its encoded bytes.
Write = Callable[[Message | bytes], Awaitable[None]]
Stream = Callable[[Clients, AsyncIterator[Any], Write], Awaitable[None]]
Read = Callable[[bytes], Message]
Counting = Callable[[MetadataGetter], AbstractContextManager[Outcome]]
Request = TypeVar("Request")


def handlers(
    service: ServiceDescriptor, clients: Clients, methods: Mapping[str, Unary | Stream], observer: Observer
) -> grpc.GenericRpcHandler:
    served = {method.name: _handler(method, clients, methods[method.name], observer) for method in service.methods}
    assert served.keys() == methods.keys(), f"not in the .proto: {methods.keys() - served.keys()}"
    return grpc.method_handlers_generic_handler(service.full_name, served)


def _handler(
    method: MethodDescriptor, clients: Clients, serve: Any, observer: Observer
) -> "grpc.RpcMethodHandler[Any, Any]":
    # No deserializer: grpcio would end a call with malformed bytes with UNKNOWN and the name of a Python exception.
    read = partial(_read, GetMessageClass(method.input_type))
    counting = partial(observer.call, method.containing_service.name, method.name)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(_stream(clients, serve, read, counting), None, _to_bytes)
    return grpc.unary_unary_rpc_method_handler(_unary(clients, serve, read, counting), None, _to_bytes)


def _read(kind: type[Message], body: bytes) -> Message:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise invalid(f"these bytes are no {kind.DESCRIPTOR.full_name}: {error}") from None


def _to_bytes(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _unary(clients: Clients, serve: Unary, read: Read, counting: Counting) -> Any:
    async def call(body: bytes, context: Context) -> Message:
        with counting(context.invocation_metadata) as outcome:
            try:
                async with asyncio.timeout(context.time_remaining()) as limit:
                    answer = await serve(clients, read(body))
                outcome.status = Status.OK
                return answer
            except TimeoutError as error:
                failure = _too_late() if limit.expired() else failed(error)
            except Exception as error:
                failure = failed(error)
            outcome.status = failure.status
        # The call is counted first, so that a client that has received the status finds the call in the metrics.
        return await end(context, failure)

    return call


def _stream(clients: Clients, serve: Stream, read: Read, counting: Counting) -> Any:
    async def call(bodies: AsyncIterator[bytes], context: Context) -> None:
        with counting(context.invocation_metadata) as outcome:
            try:
                await serve(clients, (read(body) async for body in bodies), context.write)
                outcome.status = Status.OK
                return
            except Exception as error:
                failure = failed(error)
            outcome.status = failure.status
        await end(context, failure)

    return call


def _too_late() -> RpcError:
    message = "the deadline of the call has passed; its outcome is unknown"
    return RpcError(
        Status.DEADLINE_EXCEEDED, ErrorCode.REQUEST_TIMED_OUT.name, message, ErrorCode.REQUEST_TIMED_OUT, True
    )


async def until_shutdown(clients: Clients, requests: AsyncIterator[Request]) -> AsyncIterator[Request]:
    """Yields the requests of a stream until the client ends it or the process is stopping."""
    stop = asyncio.ensure_future(clients.stopping.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(requests, None))
            await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                # The pending read may fail when the call ends. Its exception is retrieved and dropped.
                following.add_done_callback(lambda done: done.cancelled() or done.exception())
                following.cancel()
                return
            request = following.result()
            if request is None:
                return
            yield request
    finally:
        stop.cancel()


# Status codes that count as errors of the server, as in OpenTelemetry's conventions.
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
    def __init__(self, figures: RpcMetrics, tracer: Tracer) -> None:
        self._figures, self._tracer = figures, tracer

    @contextmanager
    def call(self, service: str, method: str, sent: MetadataGetter) -> Iterator[Outcome]:
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
