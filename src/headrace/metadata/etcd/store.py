"""The metadata store on etcd, and the membership of its cluster.

Who takes part in an etcd cluster: listing, adding and promoting members. Decides nothing.

Cluster facts in etcd: the store port over transactions, leases and watches.

Decides how each promise of the port is kept with what etcd gives. No decision rests on a read: a commit is a
transaction that goes through etcd's log, also one without writes.
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

PROMOTE_AGAIN_SECONDS = 0.1  # catching up with facts takes about this long


async def list_members(connection: Connection) -> list[Member]:
    return messages.member_list_reply(await connection.call(messages.MEMBER_LIST, b""))


async def add_learner(connection: Connection, peer_url: str) -> list[Member]:
    """A new member that has no vote until it has caught up; returns all of them. A second one at a time is refused."""
    request = messages.member_add_request(peer_url, is_learner=True)
    reply = await connection.call(messages.MEMBER_ADD, request, changes=True)
    return messages.member_add_reply(reply)[1]


async def client_targets(connection: Connection) -> list[str]:
    """host:port of every member that serves clients."""
    return [target_of(url) for member in await list_members(connection) for url in member.client_urls]


async def promote_when_ready(connection: Connection, peer_url: str) -> None:
    """Returns when the member at this address has its vote: at once, or when it has caught up."""
    while True:
        with suppress(StorageError, Unavailable, OutcomeUnknown):  # refused while it is behind
            own = next((one for one in await list_members(connection) if peer_url in one.peer_urls), None)
            if own is None or not own.is_learner:
                return
            await connection.call(messages.MEMBER_PROMOTE, messages.id_request(own.member_id), changes=True)
            continue
        await asyncio.sleep(PROMOTE_AGAIN_SECONDS)


# etcd answers a transaction that writes nothing from one member's memory. Deleting a key that never exists changes
# nothing either, but goes through the log like every write.
_NEVER_THERE = "/nothing"

# A member that is paused must not cost a broker its session: there is time to ask another.
RENEWAL_ATTEMPTS_PER_TTL = 5
# Leases are revoked when a machine has just died, perhaps with etcd's leader on it. What a member passes on to a leader
# that is gone is lost without a word, so it is asked again before long.
REVOCATION_SECONDS_MAX = 0.3


class EtcdStore:
    """Made by `EtcdStore.connect`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._namespace = connection.address.namespace
        self._renewal_seconds: dict[LeaseId, float] = {}  # how long a member may take to renew a lease

    @classmethod
    async def connect(cls, address: EtcdAddress) -> "EtcdStore":
        """Unavailable if none of the endpoints serves, StoreAccessDenied if they do not let us in."""
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
        # etcd counts in seconds, and gives more than it was asked for if less than an election would be too short.
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
        """Ask etcd where its members serve, and use those after the first ones that are given."""
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
        """etcd shows the events of a revision together; each revision is one of our commits."""
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
