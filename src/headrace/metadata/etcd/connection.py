"""A connection to whichever member of an etcd cluster answers.

Decides which member is asked, when to give one up for the next, and when a request must not be sent twice. Knows gRPC;
knows nothing of keys.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from headrace.metadata.etcd import messages
from headrace.metadata.etcd.address import EtcdAddress
from headrace.metadata.etcd.errors import Next, judge
from headrace.metadata.store import OutcomeUnknown, StoreClosed, Unavailable
from headrace.model.errors import InvalidConfig

log = logging.getLogger(__name__)

# A member on the same network answers a connection in milliseconds; one that does not is tried again later.
CONNECT_SECONDS_MAX = 1.0
# A commit takes milliseconds, on a busy disk hundreds of them. A member that takes longer is paused or cut off.
ATTEMPT_SECONDS_MAX = 2.0
# Long enough to see an election through (a second or two), short enough for a client that waits for its answer.
CALL_SECONDS_MAX = 6.0
ROUND_REST_SECONDS = 0.1  # between two rounds over all members
GIVEN_UP_GRACE_SECONDS = ATTEMPT_SECONDS_MAX  # calls that are under way may still be answered

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # etcd is a neighbour; a proxy that is meant for the web is not on the way to it
    ("grpc.use_local_subchannel_pool", 1),  # a store that is closed takes its connections along
    ("grpc.max_receive_message_length", 256 * 1024 * 1024),  # all facts arrive in one message when a node starts
    ("grpc.enable_retries", 0),  # whether a request may be sent again is decided here
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses to be asked more often than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
)
# A member that has lost its leader says so at once, and ends watches, instead of keeping them silently waiting.
_REQUIRE_LEADER = ("hasleader", "true")


class Endpoint:
    """One member, while it is the one that is asked."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.target = target
        self.given_up = asyncio.Event()
        self.token = ""
        self.is_known = False  # that it belongs to the cluster that was asked before
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, _OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, _OPTIONS)

    async def ready(self) -> None:
        """Return when there is a connection; Unavailable as soon as it is refused."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        raise Unavailable(f"no connection to etcd at {self.target}")
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            raise Unavailable(f"no connection to etcd at {self.target}") from None

    async def ask(self, method: str, request: bytes, seconds_max: float = ATTEMPT_SECONDS_MAX) -> bytes:
        call: Any = self._channel.unary_unary(method)
        reply: bytes = await call(request, timeout=seconds_max, metadata=self._metadata())
        return reply

    def stream(self, method: str, timeout: float | None = None) -> Any:
        return self._channel.stream_stream(method)(timeout=timeout, metadata=self._metadata())

    async def close(self, grace_seconds: float | None = None) -> None:
        self.given_up.set()
        await self._channel.close(grace_seconds)

    def _metadata(self) -> grpc.aio.Metadata:
        pairs = [_REQUIRE_LEADER, ("token", self.token)] if self.token else [_REQUIRE_LEADER]
        return grpc.aio.Metadata(*pairs)


class Connection:
    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.closed = False
        self._targets = address.endpoints
        self._credentials = _credentials(address) if address.uses_tls else None
        self._position = 0
        self._endpoint: Endpoint | None = None
        self._choosing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self._cluster_id = 0
        self._revision_seen = 0

    async def call(self, method: str, request: bytes, *, changes: bool = False) -> bytes:
        """One request, one reply. `changes`: it must not be sent again once it may have been heard."""
        return await self.attempt(lambda endpoint: endpoint.ask(method, request), changes=changes)

    async def read(self, method: str, request: bytes) -> bytes:
        """A reply that is not older than what we were told before this was asked."""
        seen = self._revision_seen

        async def ask(endpoint: Endpoint) -> bytes:
            reply = await endpoint.ask(method, request)
            _refuse_older(endpoint, messages.header_of(reply), seen)
            return reply

        return await self.attempt(ask)

    async def attempt(self, work: Callable[[Endpoint], Awaitable[bytes]], *, changes: bool = False) -> bytes:
        """Ask one member after the other until one answers or the time is over."""
        trouble: Exception = Unavailable("etcd was not asked")
        logged_in_again = False
        deadline = asyncio.get_running_loop().time() + CALL_SECONDS_MAX
        tries = 0
        while asyncio.get_running_loop().time() < deadline:
            tries += 1
            if tries > len(self._targets):
                await asyncio.sleep(ROUND_REST_SECONDS)
            try:
                endpoint = await self.endpoint()
            except Unavailable as error:
                trouble = error
                continue
            try:
                reply = await work(endpoint)
                self.note(messages.header_of(reply))
                return reply
            except Unavailable as error:  # it is behind: its answer does not count
                trouble = error
                self.give_up(endpoint)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                step, trouble = self._judge(error)
                if step is Next.LOG_IN and not logged_in_again:
                    logged_in_again, endpoint.token = True, ""
                    continue
                if step in (Next.RAISE, Next.LOG_IN):
                    raise trouble from None
                self.give_up(endpoint)
                if step is Next.UNCERTAIN and changes:
                    raise OutcomeUnknown(f"{trouble}; the change may have been made") from None
        raise trouble

    async def endpoint(self) -> Endpoint:
        """The member that is asked now: connected, and logged in to."""
        async with self._choosing:
            if self.closed:
                raise StoreClosed("the metadata store is closed")
            if self._endpoint is None:
                self._endpoint = Endpoint(self._targets[self._position % len(self._targets)], self._credentials)
            endpoint = self._endpoint
            try:
                await endpoint.ready()
                await self._greet(endpoint)
            except Unavailable:
                self.give_up(endpoint)
                raise
            return endpoint

    def use(self, targets: tuple[str, ...]) -> None:
        """The members to ask from now on, in this order; the one in use stays in use while it answers."""
        assert targets, "there is always somebody to ask"
        self._targets = targets

    def give_up(self, endpoint: Endpoint) -> None:
        """The next one shall be asked from now on; whoever watches through this one has to look for another."""
        if endpoint is not self._endpoint:
            return
        self._endpoint = None
        self._position += 1
        self._leave(endpoint, GIVEN_UP_GRACE_SECONDS)

    async def close(self) -> None:
        self.closed = True
        if self._endpoint is not None:
            self._leave(self._endpoint, None)
        if self._leaving:
            await asyncio.wait(self._leaving)

    def note(self, header: messages.Header) -> None:
        self._revision_seen = max(self._revision_seen, header.revision)

    def _leave(self, endpoint: Endpoint, grace_seconds: float | None) -> None:
        endpoint.given_up.set()
        task = asyncio.get_running_loop().create_task(endpoint.close(grace_seconds))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _greet(self, endpoint: Endpoint) -> None:
        """Log in, and make sure that nothing is ever written into another cluster."""
        try:
            if self.address.user and not endpoint.token:
                request = messages.authenticate_request(self.address.user, self.address.password)
                endpoint.token = messages.authenticate_reply(await endpoint.ask(messages.AUTHENTICATE, request))
            if not endpoint.is_known:
                header = messages.header_of(await endpoint.ask(messages.STATUS, b""))
                self._cluster_id = self._cluster_id or header.cluster_id
                if header.cluster_id != self._cluster_id:
                    raise Unavailable(
                        f"{endpoint.target} belongs to another etcd cluster; correct the list of endpoints"
                    )
                endpoint.is_known = True
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            step, trouble = self._judge(error)
            raise (trouble if step is Next.RAISE else Unavailable(str(trouble))) from None

    def _judge(self, error: grpc.aio.AioRpcError | asyncio.CancelledError) -> tuple[Next, Exception]:
        if isinstance(error, grpc.aio.AioRpcError):
            return judge(error.code(), error.details() or "")
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error  # our caller's wish; otherwise gRPC's way to say that the channel was closed under the call
        if self.closed:
            return Next.RAISE, StoreClosed("the metadata store is closed")
        return Next.UNCERTAIN, Unavailable("the connection to etcd was closed")


def _refuse_older(endpoint: Endpoint, header: messages.Header, seen: int) -> None:
    """What was seen before the request was sent must be in the answer."""
    if header.revision < seen:
        raise Unavailable(
            f"{endpoint.target} answers with revision {header.revision} after {seen} was seen: it is behind;"
            " if etcd was restored from a backup, restart this node"
        )


def _credentials(address: EtcdAddress) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(address.ca_file),
        private_key=_read(address.key_file),
        certificate_chain=_read(address.cert_file),
    )


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
