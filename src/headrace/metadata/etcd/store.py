"""Metadata store in etcd, with transactions, leases and watches; and the membership of the etcd cluster.

Implements the guarantees of `metadata/store.py`. No decision depends on a read: a commit is a transaction that goes
through etcd's log, also one without writes.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress

from headrace.config.etcd_address import EtcdAddress, target_of
from headrace.metadata.etcd import messages
from headrace.metadata.etcd.errors import judge
from headrace.metadata.etcd.failover import ATTEMPT_SECONDS_MAX, Connection, Endpoint
from headrace.metadata.etcd.grpc_client.call import CallFailed
from headrace.metadata.etcd.messages import Member
from headrace.metadata.store import (
    Change,
    Compacted,
    Conflict,
    Entry,
    LeaseExpired,
    LeaseId,
    OutcomeUnknown,
    Snapshot,
    StoreAccessDenied,
    StoreClosed,
    Unavailable,
    check_size,
)
from headrace.model.errors import StorageError

PROMOTE_AGAIN_SECONDS = 0.1  # catching up takes about this long for cluster metadata


async def list_members(connection: Connection) -> list[Member]:
    return messages.member_list_reply(await connection.call(messages.MEMBER_LIST, b""))


async def add_learner(connection: Connection, peer_url: str) -> list[Member]:
    """Adds a member without a vote; returns all members. etcd rejects a second learner while there is one."""
    request = messages.member_add_request(peer_url, is_learner=True)
    reply = await connection.call(messages.MEMBER_ADD, request, changes=True)
    return messages.member_add_reply(reply)[1]


async def client_targets(connection: Connection) -> list[str]:
    """Returns host:port of every member that serves clients."""
    return [target_of(url) for member in await list_members(connection) for url in member.client_urls]


async def promote_when_ready(connection: Connection, peer_url: str) -> None:
    """Returns when the member at this address has a vote: at once, or after it has caught up."""
    while True:
        with suppress(StorageError, Unavailable, OutcomeUnknown):  # rejected while it has not caught up
            own = next((one for one in await list_members(connection) if peer_url in one.peer_urls), None)
            if own is None or not own.is_learner:
                return
            await connection.call(messages.MEMBER_PROMOTE, messages.id_request(own.member_id), changes=True)
            continue
        await asyncio.sleep(PROMOTE_AGAIN_SECONDS)


# etcd executes a transaction without writes in one member's memory. Deleting a key that never exists changes nothing
# either, but goes through the log like every write.
_NEVER_THERE = "/nothing"

# A suspended member must not cost a broker its session: the remaining time suffices for another member.
RENEWAL_ATTEMPTS_PER_TTL = 5
# Leases are revoked after the failure of a host, perhaps that of etcd's leader. A request that a member forwards to a
# failed leader is lost silently, so that it is retried soon.
REVOCATION_SECONDS_MAX = 0.3


class EtcdStore:
    """Created by `EtcdStore.connect`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._namespace = connection.address.namespace
        self._renewal_seconds: dict[LeaseId, float] = {}  # timeout of a renewal on one member

    @classmethod
    async def connect(cls, address: EtcdAddress) -> "EtcdStore":
        """Connects. Raises Unavailable if none of the endpoints serves, StoreAccessDenied if they deny access."""
        store = cls(Connection(address))
        try:
            await store.load(_NEVER_THERE)
        except BaseException:
            await store.close()
            raise
        return store

    async def load(self, prefix: str) -> Snapshot:
        key = self._key(prefix)
        reply = await self.connection.read(messages.RANGE, messages.range_request(key, messages.prefix_end(key)))
        header, found = messages.range_reply(reply)
        entries = (Entry(self._name(kv.key), kv.value, kv.mod_revision) for kv in found)
        return Snapshot({entry.key: entry for entry in entries}, header.revision)

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        check_size(expect, writes)
        request = messages.txn_request(
            compare=[messages.version_is(self._key(key), version) for key, version in expect.items()],
            success=[self._write(key, value, lease) for key, value in (writes or {_NEVER_THERE: None}).items()],
            failure=[messages.look(self._key(key)) for key in expect],
        )
        reply = messages.txn_reply(await self.connection.call(messages.TXN, request, changes=True))
        if not reply.succeeded:
            raise Conflict(self._first_conflict(expect, reply.found))
        return reply.header.revision

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        try:
            endpoint = await self.connection.endpoint()
        except StoreClosed:
            return
        key = self._key(prefix)
        request = messages.watch_request(key, messages.prefix_end(key), after_revision + 1)
        try:
            with endpoint.watch(messages.WATCH) as call:
                call.write(request)
                async for encoded in call:
                    if self.connection.closed:
                        return
                    reply = _checked(encoded)
                    self.connection.note(reply.header)
                    for change in self._changes(reply.events):
                        yield change
        except CallFailed as error:
            if self.connection.closed:
                return
            self.connection.give_up(endpoint)
            _, trouble = judge(error.status, error.details)
            raise trouble from None
        if not self.connection.closed:
            raise Unavailable("etcd ended the watch")

    async def grant(self, ttl_ms: int) -> LeaseId:
        # etcd counts in seconds, and grants more if the requested time is shorter than an election.
        request = messages.lease_grant_request(-(-ttl_ms // 1000))
        number, _ = messages.lease_reply(await self.connection.call(messages.LEASE_GRANT, request))
        lease = LeaseId(number)
        self._renewal_seconds[lease] = min(ATTEMPT_SECONDS_MAX, ttl_ms / 1000 / RENEWAL_ATTEMPTS_PER_TTL)
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        seconds_max = self._renewal_seconds.get(lease, ATTEMPT_SECONDS_MAX)

        async def renew(endpoint: Endpoint) -> bytes:
            call = endpoint.stream(messages.LEASE_KEEP_ALIVE, seconds_max)
            try:
                call.write(messages.id_request(lease))
                async for encoded in call:
                    return encoded
            finally:
                call.cancel()
            raise Unavailable("etcd ended the stream")

        _, seconds = messages.lease_reply(await self.connection.attempt(renew))
        if seconds <= 0:
            self._renewal_seconds.pop(lease, None)
            raise LeaseExpired(f"lease {lease} is over")

    async def revoke(self, lease: LeaseId) -> None:
        self._renewal_seconds.pop(lease, None)
        request = messages.id_request(lease)
        with suppress(LeaseExpired):
            await self.connection.attempt(
                lambda endpoint: endpoint.ask(messages.LEASE_REVOKE, request, REVOCATION_SECONDS_MAX)
            )

    async def close(self) -> None:
        await self.connection.close()

    async def refresh_endpoints(self, first: tuple[str, ...]) -> None:
        """Requests the client addresses of the members from etcd, and uses them after those in `first`."""
        others = await client_targets(self.connection)
        self.connection.use((*first, *(target for target in others if target not in first)))

    def _key(self, name: str) -> bytes:
        return (self._namespace + name).encode()

    def _name(self, key: bytes) -> str:
        return key.decode()[len(self._namespace) :]

    def _write(self, key: str, value: bytes | None, lease: LeaseId | None) -> bytes:
        if value is None:
            return messages.delete(self._key(key))
        return messages.put(self._key(key), value, lease or 0)

    def _first_conflict(self, expect: Mapping[str, int], found: list[messages.KeyValue]) -> str:
        versions = {self._name(kv.key): kv.mod_revision for kv in found}
        return next(key for key, version in expect.items() if versions.get(key, 0) != version)

    def _changes(self, events: list[messages.Event]) -> Iterator[Change]:
        """Groups the events by revision: each revision is one commit. etcd sends the events of a revision together."""
        writes: dict[int, dict[str, bytes | None]] = {}
        for deleted, kv in events:
            writes.setdefault(kv.mod_revision, {})[self._name(kv.key)] = None if deleted else kv.value
        for revision in sorted(writes):
            yield Change(revision, writes[revision])


def _checked(encoded: bytes) -> messages.WatchReply:
    reply = messages.watch_reply(encoded)
    if reply.compact_revision:
        raise Compacted(f"etcd has forgotten the changes before revision {reply.compact_revision}; load again")
    if reply.canceled:
        if "permission denied" in reply.cancel_reason:
            raise StoreAccessDenied(f"etcd does not let etcd.user watch there ({reply.cancel_reason})")
        raise Unavailable(f"etcd ended the watch: {reply.cancel_reason}")
    return reply
