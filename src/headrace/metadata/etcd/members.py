"""Who takes part in an etcd cluster: listing, adding and promoting members. Decides nothing."""

import asyncio
from contextlib import suppress

from headrace.metadata.etcd import messages
from headrace.metadata.etcd.address import target_of
from headrace.metadata.etcd.connection import Connection
from headrace.metadata.etcd.messages import Member
from headrace.metadata.store import OutcomeUnknown, Unavailable
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


async def make_voter(connection: Connection, peer_url: str) -> None:
    """Returns when the member at this address has its vote: at once, or when it has caught up."""
    while True:
        with suppress(StorageError, Unavailable, OutcomeUnknown):  # refused while it is behind
            own = next((one for one in await list_members(connection) if peer_url in one.peer_urls), None)
            if own is None or not own.is_learner:
                return
            await connection.call(messages.MEMBER_PROMOTE, messages.id_request(own.member_id), changes=True)
            continue
        await asyncio.sleep(PROMOTE_AGAIN_SECONDS)
