"""Determines how an etcd member enters its cluster: it bootstraps a new one, joins an existing one, or restarts.

The decision depends on its data directory, the settings, and the responses of other members. The bootstrapping node
lists all members under names that contain a random cluster token. The others read the token from that list, so only
members of one bootstrap ever form a cluster. A member that lost its data never returns under its old identity: it
would have lost its votes.
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
_logged: dict[str, str] = {}  # the latest warning, by peer address

ANSWER_SECONDS_MAX = 1.0  # of a member on the same network
ASK_AGAIN_SECONDS = 0.03
# Two members that start at the same moment would each wait seconds for the other, so they start one after the other. A
# member that does not respond within this time is assumed not to be starting.
TURN_SECONDS_MAX = 0.3
MARK_CHARACTERS = 12  # hexadecimal digits of the cluster token: enough to be unique


ADD_AGAIN_SECONDS = 0.5  # members join one at a time, and each takes about this long


class MemberInfo(NamedTuple):
    """A member as listed by another one."""

    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]  # empty: it has never been started


class Answer(NamedTuple):
    rpc_addr: str
    members: list[MemberInfo]


def _known(member: "Member") -> MemberInfo:
    return MemberInfo(member.name, member.peer_urls, member.client_urls)


def was_started(folder: str) -> bool:
    """Whether the member was ever started, by etcd's own criterion: a write-ahead log exists."""
    with suppress(FileNotFoundError):
        return any(name.endswith(".wal") for name in os.listdir(os.path.join(folder, "member", "wal")))
    return False


async def beginning(settings: Settings, folder: str, name: str) -> MemberBootstrap:
    """Returns how to start the member; `name` is its previous name. Waits for another member where required."""
    if was_started(folder):
        return MemberBootstrap(name)
    answer = await _first_answer(_others(settings), settings)
    if settings.cluster.bootstrap:
        return found(settings, answer, uuid4().hex[:MARK_CHARACTERS])
    return await _join(settings, answer)


def _others(settings: Settings) -> dict[str, str]:
    """Returns the peer URLs of the other nodes, by their addresses in the settings."""
    return {
        member.rpc_addr: peer_url(settings, member.rpc_addr)
        for member in settings.cluster.initial_members
        if member.node_id != settings.node_id
    }


def found(settings: Settings, answer: Answer | None, mark: str) -> MemberBootstrap:
    """Returns the start of a new cluster; `answer` is the response of another member, if any.

    Raises InvalidConfig if a cluster exists already.
    """
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
    """Returns when the members at these peer URLs respond, or after TURN_SECONDS_MAX for each of them."""
    deadline = asyncio.get_running_loop().time() + TURN_SECONDS_MAX * len(silent)
    while silent and asyncio.get_running_loop().time() < deadline:
        answers = await asyncio.gather(*(ask_members(url, settings) for url in silent))
        silent = [url for url, told in zip(silent, answers, strict=True) if not told]
        if silent:
            await asyncio.sleep(ASK_AGAIN_SECONDS)


def found_with(settings: Settings, known: Sequence[MemberInfo], own_url: str) -> MemberBootstrap:
    """Returns the start as a member of the bootstrapping node's list, under the name and token of that list."""
    own = next(member for member in known if own_url in member.peer_urls)
    mark = own.name.rpartition("-")[2]
    if own.client_urls:
        raise InvalidConfig(
            f"node {settings.node_id} was an etcd member at {settings.cluster.rpc_addr} before, and its data are lost;"
            " remove that member (etcdctl member list, etcdctl member remove ID) and start this node again"
        )
    if not own.name:  # it was added and ended before its first start
        return joining(settings, known, own_url)
    if not all(member.name.endswith(mark) for member in known):
        raise InvalidConfig(
            f"node {settings.node_id} is listed as a founder, but the members have changed before it came; remove it"
            " (etcdctl member list, etcdctl member remove ID) and start this node again"
        )
    return MemberBootstrap(own.name, "new", tuple((one.name, url) for one in known for url in one.peer_urls), mark)


def joining(settings: Settings, known: Sequence[MemberInfo], own_url: str) -> MemberBootstrap:
    """Returns the start as an added member; etcd compares the other members' addresses, not their names."""
    own_name = f"node-{settings.node_id}"
    everybody = [
        (own_name if own_url in member.peer_urls else f"other-{number}", url)
        for number, member in enumerate(known)
        for url in member.peer_urls
    ]
    return MemberBootstrap(own_name, "existing", tuple(everybody))


def going_first(own_url: str, known: Sequence[MemberInfo]) -> list[str]:
    """Returns the peer URLs of members that have not started yet and have smaller addresses."""
    addresses = [min(member.peer_urls) for member in known if not member.client_urls]
    return [address for address in addresses if address < own_url]


async def _ask_to_be_added(settings: Settings, own_url: str) -> list[MemberInfo]:
    """Adds this node as a learner and returns all members."""
    from headrace.app.etcd.member_config import etcd_address
    from headrace.metadata.etcd import store
    from headrace.metadata.etcd.failover import Connection

    targets = await client_targets(settings)
    while not targets:  # the cluster is being bootstrapped
        await asyncio.sleep(ASK_AGAIN_SECONDS)
        targets = await client_targets(settings)
    connection = Connection(etcd_address(settings, tuple(targets)))
    try:
        while True:
            try:
                return [_known(member) for member in await store.add_learner(connection, own_url)]
            except HeadraceError as error:  # another member is joining, or a member does not respond
                log.info("etcd does not take this node as a member yet: %s", error)
            await asyncio.sleep(ADD_AGAIN_SECONDS)
            with suppress(Unavailable):
                present = [_known(member) for member in await store.list_members(connection)]
                if any(own_url in member.peer_urls for member in present):
                    return present  # the request succeeded although its response was an error
    finally:
        await connection.close()


async def client_targets(settings: Settings) -> list[str]:
    """Returns host:port of the members' client endpoints, as listed by the first member that responds."""
    answer = await _first_answer(_others(settings), settings)
    known = answer.members if answer is not None else []
    return [target_of(url) for member in known for url in member.client_urls]


async def _first_answer(others: Mapping[str, str], settings: Settings) -> Answer | None:
    answers = await asyncio.gather(*(ask_members(url, settings) for url in others.values()))
    return next((Answer(addr, told) for addr, told in zip(others, answers, strict=True) if told), None)


async def ask_members(url: str, settings: Settings) -> list[MemberInfo]:
    """Returns the members as listed at this peer URL; empty if it does not respond."""
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
    except ssl.SSLError as error:  # retries do not help: a certificate has to be corrected
        _log_once(url, f"No TLS connection to the etcd member at {url} with {settings.etcd.ca_file}: {error}")
        return []
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
    finally:
        connection.close()


def _tls(settings: Settings) -> ssl.SSLContext:
    from headrace.metadata.etcd.tls import client_context  # imported here because most clusters have no certificates

    return client_context(settings.etcd.ca_file, settings.etcd.cert_file, settings.etcd.key_file)


def _log_once(url: str, message: str) -> None:
    """Logs a warning if it differs from the last one for this member: members are polled 30 times per second."""
    if _logged.get(url) != message:
        _logged[url] = message
        log.warning("%s", message)
