"""How a member comes into its cluster: founds it with others, joins it later, or was there before.

Decides by what lies in its folder, what the settings say and what the other members answer. The founder lists all
members under names that carry the mark of this founding; the others read the mark in the founder's list, so that only
members of one founding ever form a cluster. A member whose data are gone never comes back as itself: it would have
forgotten what it voted for.
"""

import asyncio
import http.client
import json
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from headrace.app.etcd.member_config import MemberBootstrap, peer_url
from headrace.config.etcd_address import target_of
from headrace.config.settings import Settings, split_address
from headrace.metadata.store import Unavailable
from headrace.model.errors import HeadraceError, InvalidConfig

if TYPE_CHECKING:
    from headrace.metadata.etcd.messages import Member

log = logging.getLogger(__name__)
_logged: dict[str, str] = {}  # the latest warning by peer address

ANSWER_SECONDS_MAX = 1.0  # of a member on the same network
ASK_AGAIN_SECONDS = 0.03
# Two members that begin at the same moment would each wait seconds for the other to answer: they begin in turn. One
# that does not answer by then is not about to begin after all.
TURN_SECONDS_MAX = 0.3
MARK_CHARACTERS = 12  # of hexadecimal digits: no two foundings meet by chance


ADD_AGAIN_SECONDS = 0.5  # one joins at a time, and each takes about this long


class MemberInfo(NamedTuple):
    """A member as the others list it."""

    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]  # empty: it has never been started


class Answer(NamedTuple):
    rpc_addr: str
    members: list[MemberInfo]


def _known(member: "Member") -> MemberInfo:
    return MemberInfo(member.name, member.peer_urls, member.client_urls)


def was_started(folder: str) -> bool:
    """As etcd itself decides it: by its write-ahead log."""
    with suppress(FileNotFoundError):
        return any(name.endswith(".wal") for name in os.listdir(os.path.join(folder, "member", "wal")))
    return False


async def beginning(settings: Settings, folder: str, name: str) -> MemberBootstrap:
    """`name` is the one that the member had before. Waits for another member to answer where it has to."""
    if was_started(folder):
        return MemberBootstrap(name)
    answer = await _first_answer(_others(settings), settings)
    if settings.cluster.bootstrap:
        return found(settings, answer, uuid4().hex[:MARK_CHARACTERS])
    return await _join(settings, answer)


def _others(settings: Settings) -> dict[str, str]:
    """The peer addresses of the other nodes, by the addresses in the settings."""
    return {
        member.rpc_addr: peer_url(settings, member.rpc_addr)
        for member in settings.cluster.initial_members
        if member.node_id != settings.node_id
    }


def found(settings: Settings, answer: Answer | None, mark: str) -> MemberBootstrap:
    """`answer`: what another member says already, if one does."""
    if answer is not None:
        raise InvalidConfig(
            f"cluster.bootstrap is true, but {answer.rpc_addr} has a cluster already; set it to false, and this node"
            " joins"
        )
    members = settings.cluster.initial_members
    everybody = tuple((f"node-{one.node_id}-{mark}", peer_url(settings, one.rpc_addr)) for one in members)
    return MemberBootstrap(f"node-{settings.node_id}-{mark}", "new", everybody, mark)


async def _join(settings: Settings, answer: Answer | None) -> MemberBootstrap:
    others = _others(settings)
    if not others:
        raise InvalidConfig(
            "cluster.initial_members names this node alone, but cluster.bootstrap is false: set it to true to found a"
            " cluster, or name members of the one to join"
        )
    if answer is None:
        log.info("Waiting for a response of a cluster member at %s", ", ".join(others))
    while answer is None:
        await asyncio.sleep(ASK_AGAIN_SECONDS)
        answer = await _first_answer(others, settings)
    own_url = peer_url(settings, settings.cluster.rpc_addr)
    if any(own_url in member.peer_urls for member in answer.members):
        begin = found_with(settings, answer.members, own_url)
    else:
        begin = joining(settings, await _ask_to_be_added(settings, own_url), own_url)
    await _wait_for(going_first(own_url, answer.members), settings)
    return begin


async def _wait_for(silent: Sequence[str], settings: Settings) -> None:
    """Returns when the members at these peer addresses answer, or have had their time."""
    deadline = asyncio.get_running_loop().time() + TURN_SECONDS_MAX * len(silent)
    while silent and asyncio.get_running_loop().time() < deadline:
        answers = await asyncio.gather(*(ask_members(url, settings) for url in silent))
        silent = [url for url, told in zip(silent, answers, strict=True) if not told]
        if silent:
            await asyncio.sleep(ASK_AGAIN_SECONDS)


def found_with(settings: Settings, known: Sequence[MemberInfo], own_url: str) -> MemberBootstrap:
    """As the founder lists us: under its names, in its cluster."""
    own = next(member for member in known if own_url in member.peer_urls)
    mark = own.name.rpartition("-")[2]
    if own.client_urls:
        raise InvalidConfig(
            f"node {settings.node_id} was an etcd member at {settings.cluster.rpc_addr} before, and its data are lost;"
            " remove that member (etcdctl member list, etcdctl member remove ID) and start this node again"
        )
    if not own.name:  # it was added and died before it could begin
        return joining(settings, known, own_url)
    if not all(member.name.endswith(mark) for member in known):
        raise InvalidConfig(
            f"node {settings.node_id} is listed as a founder, but the members have changed before it came; remove it"
            " (etcdctl member list, etcdctl member remove ID) and start this node again"
        )
    return MemberBootstrap(own.name, "new", tuple((one.name, url) for one in known for url in one.peer_urls), mark)


def joining(settings: Settings, known: Sequence[MemberInfo], own_url: str) -> MemberBootstrap:
    """As one who was added; etcd compares the addresses of the others, and not their names."""
    own_name = f"node-{settings.node_id}"
    everybody = [
        (own_name if own_url in member.peer_urls else f"other-{number}", url)
        for number, member in enumerate(known)
        for url in member.peer_urls
    ]
    return MemberBootstrap(own_name, "existing", tuple(everybody))


def going_first(own_url: str, known: Sequence[MemberInfo]) -> list[str]:
    """Where those are who are about to begin as well and have smaller addresses."""
    addresses = [min(member.peer_urls) for member in known if not member.client_urls]
    return [address for address in addresses if address < own_url]


async def _ask_to_be_added(settings: Settings, own_url: str) -> list[MemberInfo]:
    """All members, once we are one of them."""
    from headrace.app.etcd.member_config import etcd_address
    from headrace.metadata.etcd import store
    from headrace.metadata.etcd.failover import Connection

    targets = await client_targets(settings)
    while not targets:  # they are founding their cluster just now
        await asyncio.sleep(ASK_AGAIN_SECONDS)
        targets = await client_targets(settings)
    connection = Connection(etcd_address(settings, tuple(targets)))
    try:
        while True:
            try:
                return [_known(member) for member in await store.add_learner(connection, own_url)]
            except HeadraceError as error:  # another one is joining, or a member does not answer just now
                log.info("etcd does not take this node as a member yet: %s", error)
            await asyncio.sleep(ADD_AGAIN_SECONDS)
            with suppress(Unavailable):
                present = [_known(member) for member in await store.list_members(connection)]
                if any(own_url in member.peer_urls for member in present):
                    return present  # it was taken after all
    finally:
        await connection.close()


async def client_targets(settings: Settings) -> list[str]:
    """host:port where the members serve brokers, as far as one of them tells."""
    answer = await _first_answer(_others(settings), settings)
    known = answer.members if answer is not None else []
    return [target_of(url) for member in known for url in member.client_urls]


async def _first_answer(others: Mapping[str, str], settings: Settings) -> Answer | None:
    answers = await asyncio.gather(*(ask_members(url, settings) for url in others.values()))
    return next((Answer(addr, told) for addr, told in zip(others, answers, strict=True) if told), None)


async def ask_members(url: str, settings: Settings) -> list[MemberInfo]:
    """Who takes part, as the member at this peer address has it; nobody if it does not answer."""
    return await asyncio.to_thread(_ask_members, url, settings)


def _ask_members(url: str, settings: Settings) -> list[MemberInfo]:
    host, port = split_address(urlsplit(url).netloc)
    connection: http.client.HTTPConnection
    if url.startswith("https"):
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS_MAX, context=_tls(settings))
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", "/members")
        response = connection.getresponse()
        rows = json.loads(response.read()) if response.status == http.client.OK else []
        return [
            MemberInfo(row.get("name", ""), tuple(row["peerURLs"]), tuple(row.get("clientURLs") or ())) for row in rows
        ]
    except ssl.SSLError as error:  # waiting does not help: the certificates of one side have to be corrected
        _log_once(url, f"No TLS connection to the etcd member at {url} with {settings.etcd.ca_file}: {error}")
        return []
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
    finally:
        connection.close()


def _tls(settings: Settings) -> ssl.SSLContext:
    from headrace.metadata.etcd.tls import client_context  # most clusters have no certificates

    return client_context(settings.etcd.ca_file, settings.etcd.cert_file, settings.etcd.key_file)


def _log_once(url: str, message: str) -> None:
    """Members are asked 30 times a second: a line is written when it differs from the one before of the same member."""
    if _logged.get(url) != message:
        _logged[url] = message
        log.warning("%s", message)
