"""How a method of the .proto becomes a handler of the server: by name, with its time limit and its failures told.

Decides what every call has in common. A method of the .proto that nobody serves stops the server from being built.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from headrace.model.errors import ErrorCode
from headrace.rpc.clients import Clients
from headrace.rpc.failures import Failed, Status, end, failed, invalid
from headrace.rpc.figures import Carrier, Observer, Outcome

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Clients, Any], Awaitable[Message]]
# Writes its answers itself: `await write(message, or the bytes of one)`.
Write = Callable[[Message | bytes], Awaitable[None]]
Stream = Callable[[Clients, AsyncIterator[Any], Write], Awaitable[None]]
Read = Callable[[bytes], Message]
Counting = Callable[[Carrier], AbstractContextManager[Outcome]]
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


def _too_late() -> Failed:
    message = "the deadline of the call has passed; its outcome is unknown"
    return Failed(
        Status.DEADLINE_EXCEEDED, ErrorCode.REQUEST_TIMED_OUT.name, message, ErrorCode.REQUEST_TIMED_OUT, True
    )


async def until_stopped(clients: Clients, requests: AsyncIterator[Request]) -> AsyncIterator[Request]:
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
