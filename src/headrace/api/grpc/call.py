"""What every call passes: deadlines, errors, metrics, tracing.

What the gRPC side counts: calls by method and status, how long they took, and which are open.

How a method of the .proto becomes a handler of the server: by name, with its time limit and its failures told.

Decides what every call has in common. A method of the .proto that nobody serves stops the server from being built.

Calls as spans, where they are traced: counted as ever, and named by their method.
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

# The metadata of a call, asked for only by who wants it: reading it costs more than counting.
MetadataGetter = Callable[[], Any]


class Observer(Protocol):
    """Whoever wants to know of calls."""

    def call(self, service: str, method: str, sent: MetadataGetter) -> AbstractContextManager["Outcome"]: ...


class Outcome:
    """What a call ends with; CANCELLED if nobody says otherwise: then its client has gone."""

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

    def families(self) -> Iterator[MetricFamily]:
        yield MetricFamily(metrics.GRPC_CALLS, [(labels, count) for labels, count in sorted(self._calls.items())])
        yield by_label(
            metrics.GRPC_DURATION, [(method, one.value()) for method, one in sorted(self._durations.items())]
        )
        yield by_label(metrics.GRPC_IN_FLIGHT, sorted(self._open.items()))


Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Clients, Any], Awaitable[Message]]
# Writes its answers itself: `await write(message, or the bytes of one)`.
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
    # Without a deserializer the bytes come as they are: grpcio would answer broken ones with UNKNOWN and a Python name.
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
        # Counted first: who hears how the call ended finds it in the figures.
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
    """The requests of a stream, until the client has said all or the process is told to stop."""
    stop = asyncio.ensure_future(clients.stopping.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(requests, None))
            await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                # It may end with an error when the call does, of which nothing is to be said.
                following.add_done_callback(lambda done: done.cancelled() or done.exception())
                following.cancel()
                return
            request = following.result()
            if request is None:
                return
            yield request
    finally:
        stop.cancel()


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
