"""Connection to an etcd cluster with failover between its members.

Never repeats a change that etcd may have executed.
Uses gRPC; independent of keys and values.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.config.etcd_address import EtcdAddress
from headrace.metadata.etcd import messages
from headrace.metadata.etcd.errors import Next, judge
from headrace.metadata.etcd.grpc_client.call import Call, CallFailed, ChannelClosed, Status
from headrace.metadata.etcd.grpc_client.channel import Channel
from headrace.metadata.store import OutcomeUnknown, StoreClosed, Unavailable

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

# A member on the same network accepts a connection in milliseconds; one that does not is retried later.
CONNECT_SECONDS_MAX = 1.0
# A commit takes milliseconds, on a busy disk hundreds of them. A member that takes longer is suspended or partitioned.
ATTEMPT_SECONDS_MAX = 2.0
# Longer than an election (a second or two), shorter than a client waits for a response.
CALL_SECONDS_MAX = 6.0
ROUND_REST_SECONDS = 0.1  # between two passes over all members
GIVEN_UP_GRACE_SECONDS = ATTEMPT_SECONDS_MAX  # calls in flight may still complete

# With it, a member that loses its leader fails requests and ends watches, instead of leaving them waiting.
_REQUIRE_LEADER = (b"hasleader", b"true")


class Endpoint:
    """The member that is in use."""

    def __init__(self, target: str, tls: "ssl.SSLContext | None") -> None:
        self.target = target
        self.token = ""
        self.is_known = False  # whether it belongs to the same cluster as the members before
        self._tls = tls
        self._channel: Channel | None = None
        self._is_given_up = False
        self._watches: set[Call] = set()

    async def ready(self) -> None:
        """Returns when there is a connection. Raises Unavailable as soon as it is refused."""
        if self._channel is None or self._channel.is_lost:
            self._channel = await self._connect()
            self.is_known = False
        elif self._channel.refusal:
            raise Unavailable(self._channel.refusal)

    async def _connect(self) -> Channel:
        try:
            channel = await Channel.connect(self.target, self._tls, seconds_max=CONNECT_SECONDS_MAX)
        except CallFailed as error:
            raise Unavailable(f"no connection to etcd at {self.target} ({error.details})") from None
        if self._is_given_up:
            await channel.close()
            raise Unavailable(f"no connection to etcd at {self.target}")
        return channel

    async def ask(self, method: str, request: bytes, seconds_max: float = ATTEMPT_SECONDS_MAX) -> bytes:
        return await self._connected().ask(method, request, self._metadata(), seconds_max=seconds_max)

    def stream(self, method: str, seconds_max: float) -> Call:
        return self._connected().open(method, self._metadata(), seconds_max=seconds_max)

    @contextmanager
    def watch(self, method: str) -> Iterator[Call]:
        """Opens a stream without a deadline. It fails when the member is given up."""
        call = self._connected().open(method, self._metadata())
        self._watches.add(call)
        try:
            yield call
        finally:
            self._watches.discard(call)
            call.cancel()

    def give_up(self) -> None:
        """Stops using the member.

        Calls in flight may still complete; watches are canceled, because they would wait forever.
        """
        self._is_given_up = True
        for call in tuple(self._watches):
            call.cancel(CallFailed(Status.UNAVAILABLE, f"the watch through {self.target} is closed: no response"))

    async def close(self, grace_seconds: float) -> None:
        if self._channel is not None:
            await self._channel.close(grace_seconds)

    def _connected(self) -> Channel:
        assert self._channel is not None, "whoever asks has waited until it is ready"
        return self._channel

    def _metadata(self) -> list[tuple[bytes, bytes]]:
        return [_REQUIRE_LEADER, (b"token", self.token.encode())] if self.token else [_REQUIRE_LEADER]


class Connection:
    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.closed = False
        self._targets = address.endpoints
        self._tls = _tls_context(address) if address.uses_tls else None
        self._position = 0
        self._endpoint: Endpoint | None = None
        self._choosing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self._cluster_id = 0
        self._revision_seen = 0

    async def call(self, method: str, request: bytes, *, changes: bool = False) -> bytes:
        """Sends a request and returns the response.

        `changes`: it must not be repeated once etcd may have received it.
        """
        return await self.attempt(lambda endpoint: endpoint.ask(method, request), changes=changes)

    async def read(self, method: str, request: bytes) -> bytes:
        """Returns a response that is at least as recent as every response before the request."""
        seen = self._revision_seen

        async def ask(endpoint: Endpoint) -> bytes:
            reply = await endpoint.ask(method, request)
            _refuse_older(endpoint, messages.header_of(reply), seen)
            return reply

        return await self.attempt(ask)

    async def attempt(self, work: Callable[[Endpoint], Awaitable[bytes]], *, changes: bool = False) -> bytes:
        """Tries one member after the other until one responds or the time is over."""
        trouble: Exception = Unavailable("the request was not sent to etcd")
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
            except Unavailable as error:  # the member is behind: its response is discarded
                trouble = error
                self.give_up(endpoint)
            except CallFailed as error:
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
        """Returns the member in use, after connecting and logging in if necessary."""
        async with self._choosing:
            if self.closed:
                raise StoreClosed("the metadata store is closed")
            if self._endpoint is None:
                self._endpoint = Endpoint(self._targets[self._position % len(self._targets)], self._tls)
            endpoint = self._endpoint
            try:
                await endpoint.ready()
                await self._greet(endpoint)
            except Unavailable:
                self.give_up(endpoint)
                raise
            return endpoint

    def use(self, targets: tuple[str, ...]) -> None:
        """Sets the members, in order of preference; the one in use stays in use while it responds."""
        assert targets, "there is always somebody to ask"
        self._targets = targets

    def give_up(self, endpoint: Endpoint) -> None:
        """Switches to the next member. Watches through this one end and have to be opened again."""
        if endpoint is not self._endpoint:
            return
        self._endpoint = None
        self._position += 1
        self._leave(endpoint, GIVEN_UP_GRACE_SECONDS)

    async def close(self) -> None:
        self.closed = True
        if self._endpoint is not None:
            self._leave(self._endpoint, 0.0)
        if self._leaving:
            await asyncio.wait(self._leaving)
        async with self._choosing:
            pass  # waits for a connection attempt, which detects `closed` and ends

    def note(self, header: messages.Header) -> None:
        self._revision_seen = max(self._revision_seen, header.revision)

    def _leave(self, endpoint: Endpoint, grace_seconds: float) -> None:
        endpoint.give_up()
        task = asyncio.get_running_loop().create_task(endpoint.close(grace_seconds))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _greet(self, endpoint: Endpoint) -> None:
        """Logs in, and verifies that the member belongs to the same cluster, so that no other one is written to."""
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
        except CallFailed as error:
            step, trouble = self._judge(error)
            raise (trouble if step is Next.RAISE else Unavailable(str(trouble))) from None

    def _judge(self, error: CallFailed) -> tuple[Next, Exception]:
        if self.closed and isinstance(error, ChannelClosed):
            return Next.RAISE, StoreClosed("the metadata store is closed")
        if not error.may_have_begun:
            return Next.MOVE_ON, Unavailable(f"the request was not sent to etcd: {error.details}")
        return judge(error.status, error.details)


def _refuse_older(endpoint: Endpoint, header: messages.Header, seen: int) -> None:
    """Raises Unavailable if the response is older than one that was received before the request."""
    if header.revision < seen:
        raise Unavailable(
            f"{endpoint.target} responds with revision {header.revision} after {seen} was seen: it is behind;"
            " if etcd was restored from a backup, restart this node"
        )


def _tls_context(address: EtcdAddress) -> "ssl.SSLContext":
    from headrace.metadata.etcd.tls import tls_context  # most clusters have no certificates

    return tls_context(address)
