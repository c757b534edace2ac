"""Request pipeline: from a frame to its handler and back. The only module that turns exceptions into error responses.

Produce and Fetch are called directly with the reader at the request body, and return response parts. Every other API
has a function `handle_<api>(request, call)` in a module of `broker/handlers`; `protocol/codec.py` decodes its
requests and encodes its responses. Handler and codec are imported at the first request of the API. That takes up to
40 ms and runs in a thread, so that other clients are not delayed.

Most handlers are coroutines; each call runs as a task. Handlers of frequent requests of group members are plain
functions. They return the response or a `DeferredResponse`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from headrace.broker.api.context import RequestContext
from headrace.broker.api.deferred import DeferredResponse
from headrace.broker.api.fast_path import FALLBACK
from headrace.broker.api.registry import handler_of
from headrace.broker.network.connection import Connection
from headrace.broker.network.response_queue import ResponseSlot
from headrace.model.errors import ErrorCode, HeadraceError, ProtocolError
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import count_errors, error_response, load_codec, read_request, write_response
from headrace.protocol.frames import (
    REQUEST_HEADER,
    Parts,
    RequestHeader,
    UnsupportedVersionFor,
    parse_request_header,
    response,
)
from headrace.protocol.primitives import Reader

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

# Only Produce requests carry records; no other request needs to be large. Ten thousand topics with the longest names,
# or all partitions of a large cluster, fit. Bounds the objects that one request can decode to before it is validated.
OTHER_REQUEST_BYTES_MAX = 8 * 1024 * 1024

# Modules that are loaded together with the handler of an API: clients send one of these requests before any other
# request to a coordinator.
_COORDINATORS = "headrace.broker.coordinator"
LOADED_WITH = {
    ApiKey.FIND_COORDINATOR: (
        f"{_COORDINATORS}.group_coordinator",
        f"{_COORDINATORS}.add_partitions_manager",
        f"{_COORDINATORS}.transaction_coordinator",
    ),
    ApiKey.LIST_GROUPS: (f"{_COORDINATORS}.group_coordinator",),
    ApiKey.LIST_TRANSACTIONS: (f"{_COORDINATORS}.transaction_coordinator",),
}

# APIs whose requests get a fast path (`broker/api/fast_path.py`). Produce registers its own.
SHORTCUTS = {ApiKey.OFFSET_COMMIT: "headrace.broker.handlers.group.offset_commit_fast_path"}

HotHandler = Callable[[Connection, RequestHeader, Reader], "Parts | None"]
ColdHandler = Callable[[Any, RequestContext], Awaitable[Any]]
PromptHandler = Callable[[Any, RequestContext], Any]
TemplateBuilder = Callable[[Connection, memoryview, RequestHeader, Any, RequestContext], None]

# Largest request that does not stop its connection's reading while its deferred response is pending. The memory that
# one client can hold this way is bounded by its in-flight requests.
SMALL_REQUEST_BYTES_MAX = 2 * 1024


class RequestPipeline:
    def __init__(self, broker: "Broker", hot: dict[ApiKey, HotHandler]) -> None:
        self._broker = broker
        self._hot = hot
        self._requests = broker.figures.requests
        self._cold: dict[ApiKey, ColdHandler] = {}
        self._prompt: dict[ApiKey, PromptHandler] = {}
        self._learners: dict[ApiKey, TemplateBuilder] = {}
        self._loaded: set[tuple[ApiKey, int]] = set()  # whose codec and handler are loaded
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, connection: Connection, frame: memoryview) -> Parts | None:
        if connection.shortcuts and len(frame) >= REQUEST_HEADER.size:
            shortcut = connection.shortcuts.get(frame[1])
            if shortcut is not None:
                connection.durations = shortcut.durations
                parts = shortcut(frame)
                if parts is not FALLBACK:
                    return parts
        try:
            header, reader = parse_request_header(frame)
        except UnsupportedVersionFor as error:
            connection.durations = self._requests[error.api]
            return self._unsupported_version(error)
        connection.durations = self._requests[header.api]
        if len(frame) > OTHER_REQUEST_BYTES_MAX and header.api is not ApiKey.PRODUCE:
            raise ProtocolError(f"{header.api.name} of {len(frame)} bytes; at most {OTHER_REQUEST_BYTES_MAX} are read")
        hot = self._hot.get(header.api)
        if hot is not None:
            return hot(connection, header, reader)
        call = RequestContext(
            self._broker,
            connection.principal,
            header.client_id,
            connection.client_host,
            connection.listener,
            header.api,
            header.version,
            header.correlation_id,
        )
        body = reader.take(reader.remaining)
        if (header.api, header.version) not in self._loaded:
            self._start(self._load_and_answer(connection, connection.reserve_last_slot(), call, bytes(body)))
            return None
        request = read_request(header.api, header.version, body)
        prompt = self._prompt.get(header.api)
        if prompt is None:
            self._start(self._answer(connection.reserve_last_slot(), call, request))
            return None
        later, answer = _outcome(prompt, request, call)
        learn = self._learners.get(header.api)
        if learn is not None:
            learn(connection, frame, header, request, call)
        if later is not None:
            is_small = len(frame) <= SMALL_REQUEST_BYTES_MAX
            reply = connection.reserve_slot() if is_small else connection.reserve_last_slot()
            later.then(lambda settled: _send(reply, call, _settled_body(call, settled)))
            return None
        if answer is None:
            connection.close("A request failed")
            return None
        return response(header.api, header.version, header.correlation_id, answer)

    def _start(self, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answering)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_and_answer(
        self, connection: Connection, reply: ResponseSlot, call: RequestContext, body: bytes
    ) -> None:
        try:
            await asyncio.to_thread(self._load, call.api_key, call.api_version)
            request = read_request(call.api_key, call.api_version, memoryview(body))
        except ProtocolError as error:
            connection.close(str(error))
        except Exception:
            log.exception("%s of client %r cannot be read", call.api_key.name, call.client_id)
            reply.abandon()
        else:
            await self._answer(reply, call, request)

    def _load(self, api: ApiKey, version: int) -> None:
        load_codec(api, version)
        handle = handler_of(api)
        if iscoroutinefunction(handle):
            self._cold[api] = handle
        else:
            self._prompt[api] = handle
        for module in LOADED_WITH.get(api, ()):
            import_module(module)
        if api in SHORTCUTS:
            self._learners[api] = import_module(SHORTCUTS[api]).learn
        self._loaded.add((api, version))

    def _unsupported_version(self, error: UnsupportedVersionFor) -> Parts:
        """Returns the supported versions to a client that is newer than the broker, so that it retries with one.

        Raises ProtocolError for APIs other than ApiVersions.
        """
        if error.api is not ApiKey.API_VERSIONS:
            raise ProtocolError(f"{error} (client {error.client_id!r})")
        from headrace.protocol.messages.api_versions import unsupported_version_body

        self._broker.figures.errors[ApiKey.API_VERSIONS][ErrorCode.UNSUPPORTED_VERSION] += 1
        return response(ApiKey.API_VERSIONS, 0, error.correlation_id, unsupported_version_body())

    async def _answer(self, reply: ResponseSlot, call: RequestContext, request: Any) -> None:
        prompt = self._prompt.get(call.api_key)
        if prompt is not None:
            later, body = _outcome(prompt, request, call)
            if later is not None:
                later.then(lambda settled: _send(reply, call, _settled_body(call, settled)))
                return
        else:
            try:
                answer = await self._cold[call.api_key](request, call)
                body = _response_body(call, answer)
            except Exception as error:
                body = _error_body(call, error)
        _send(reply, call, body)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _outcome(
    handler: PromptHandler, request: Any, call: RequestContext
) -> tuple[DeferredResponse[Any] | None, bytes | None]:
    """Returns a deferred response or the response body; neither if the API has no error response."""
    try:
        outcome = handler(request, call)
        if isinstance(outcome, DeferredResponse):
            if not outcome.is_settled:
                return outcome, None
            outcome = outcome.response()
        return None, _response_body(call, outcome)
    except Exception as error:
        return None, _error_body(call, error)


def _response_body(call: RequestContext, answer: Any) -> bytes:
    """Encodes the response and counts its errors. If encoding fails, only the error that is sent instead is counted."""
    api, version = call.api_key, call.api_version
    body = write_response(api, version, answer)
    count_errors(api, version, answer, call.broker.figures.errors[api])
    return body


def _settled_body(call: RequestContext, later: DeferredResponse[Any]) -> bytes | None:
    try:
        return _response_body(call, later.response())
    except Exception as error:
        return _error_body(call, error)


def _send(reply: ResponseSlot, call: RequestContext, body: bytes | None) -> None:
    if body is None:
        reply.abandon()
    else:
        reply.send(response(call.api_key, call.api_version, call.correlation_id, body))


def _error_body(call: RequestContext, error: Exception) -> bytes | None:
    """Counts the error; returns the error response, or None if the API has none."""
    code = error.code if isinstance(error, HeadraceError) else ErrorCode.UNKNOWN_SERVER_ERROR
    call.broker.figures.errors[call.api_key][code] += 1
    if isinstance(error, HeadraceError):
        body = error_response(call.api_key, call.api_version, error.code)
        if body is None:
            log.warning("%s of client %r rejected: %s", call.api_key.name, call.client_id, error)
        return body
    log.error("%s of client %r failed", call.api_key.name, call.client_id, exc_info=error)
    return error_response(call.api_key, call.api_version, ErrorCode.UNKNOWN_SERVER_ERROR)
