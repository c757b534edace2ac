"""Builds Settings from checked key-value texts, and refuses combinations that cannot work.

Decides what a valid set of listeners, a data directory and a cluster description is. Knows nothing of where
the texts came from: `refuse(key, reason)` lets the caller say it.
"""

from collections.abc import Callable, Mapping

from headrace.model.configs import BROKER_CONFIGS
from headrace.model.errors import InvalidConfig
from headrace.model.node_configs import NODE_CONFIGS
from headrace.model.settings import (
    ClusterSettings,
    GatewaySettings,
    Listener,
    Member,
    Settings,
    split_address,
)

Refuse = Callable[[str, str], None]
# Any address of this machine: right to listen on, but nothing that a client elsewhere could connect to.
_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (compared with, never bound)


def build_settings(texts: Mapping[str, str], refuse: Refuse) -> Settings | None:
    """Settings of canonical texts by key; None after at least one call of `refuse`."""
    try:
        listeners = _listeners(texts, "listeners") or Settings().listeners
        _check_listeners(listeners, texts)
        advertised = _listeners(texts, "advertised.listeners")
        _check_advertised(advertised, listeners)
        cluster = _cluster(texts)
        return Settings(
            node_id=int(texts.get("node.id", Settings().node_id)),
            cluster_id=texts.get("cluster.id"),
            rack=texts.get("broker.rack"),
            listeners=listeners,
            advertised=advertised,
            data_dir=_data_dir(texts),
            storage=texts.get("storage", Settings().storage),
            broker_configs={key: text for key, text in texts.items() if key in BROKER_CONFIGS},
            cluster=cluster,
            gateway=_gateway(texts),
        )
    except _Refused as refused:
        refuse(refused.key, str(refused))
        return None


class _Refused(Exception):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def _listeners(texts: Mapping[str, str], key: str) -> tuple[Listener, ...]:
    if key not in texts:
        return ()
    try:
        listeners = tuple(Listener.parse(item) for item in texts[key].split(",") if item)
    except InvalidConfig as error:
        raise _Refused(key, f"{key}: {error}") from None
    if not listeners:
        raise _Refused(key, f"{key} is empty; write NAME://host:port or leave it out")
    return listeners


def _check_listeners(listeners: tuple[Listener, ...], texts: Mapping[str, str]) -> None:
    protocols = _protocols(texts)
    seen: dict[str, Listener] = {}
    for listener in listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise _Refused(
                "listeners",
                f"listeners: {listener.name} is not in listener.security.protocol.map; add it there",
            )
        if protocol != "PLAINTEXT":
            raise _Refused(
                "listeners",
                f"listeners: {listener} would speak {protocol}; this version speaks PLAINTEXT only",
            )
        if listener.name in seen:
            raise _Refused(
                "listeners", f"listeners: {seen[listener.name]} and {listener} have the same name; rename one"
            )
        seen[listener.name] = listener
    addresses = [(listener.host, listener.port) for listener in listeners if listener.port != 0]
    if len(set(addresses)) != len(addresses):
        raise _Refused("listeners", "listeners: two of them have the same address; change one port")
    inter_broker = texts.get("inter.broker.listener.name")
    if inter_broker and inter_broker.upper() not in seen:
        raise _Refused(
            "inter.broker.listener.name", f"inter.broker.listener.name: no listener is called {inter_broker}"
        )


def _protocols(texts: Mapping[str, str]) -> dict[str, str]:
    key = "listener.security.protocol.map"
    text = texts.get(key) or BROKER_CONFIGS[key].default_text or ""
    pairs = [item.strip().partition(":") for item in text.split(",") if item.strip()]
    for name, colon, protocol in pairs:
        if not (name and colon and protocol):
            raise _Refused(key, f"{key}: write NAME:PROTOCOL pairs, e.g. INTERNAL:PLAINTEXT")
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}


def _check_advertised(advertised: tuple[Listener, ...], listeners: tuple[Listener, ...]) -> None:
    key = "advertised.listeners"
    names = {listener.name for listener in listeners}
    for listener in advertised:
        if listener.name not in names:
            raise _Refused(key, f"{key}: no listener is called {listener.name}; add it to listeners")
        if listener.host in _EVERY_INTERFACE:
            raise _Refused(key, f"{key}: clients cannot connect to {listener}; name a host that they can reach")
    if len({listener.name for listener in advertised}) != len(advertised):
        raise _Refused(key, f"{key}: one name stands twice; advertise one address per listener")


def _data_dir(texts: Mapping[str, str]) -> str:
    directories = [item for item in texts.get("log.dirs", "").split(",") if item]
    if "log.dirs" not in texts:
        return Settings().data_dir
    if len(directories) != 1:
        raise _Refused("log.dirs", "log.dirs: a node has exactly one data directory; run a node per disk instead")
    return directories[0]


def _cluster(texts: Mapping[str, str]) -> ClusterSettings:
    key = "cluster.initial_members"
    members = tuple(_member(item) for item in texts.get(key, "").split(",") if item)
    if len(members) > 1:
        raise _Refused(key, f"{key}: names {len(members)} nodes, but this version runs single nodes only")
    node_id = int(texts.get("node.id", Settings().node_id))
    if members and members[0].node_id != node_id:
        raise _Refused(key, f"{key}: this node ({node_id}) is not among the members")
    cluster = ClusterSettings(
        rpc_addr=_text(texts, "rpc_addr"),
        initial_members=members,
        bootstrap=_text(texts, "cluster.bootstrap") == "true",
        heartbeat_interval_ms=int(_text(texts, "raft.heartbeat_interval_ms")),
        election_timeout_min_ms=int(_text(texts, "raft.election_timeout_min_ms")),
        election_timeout_max_ms=int(_text(texts, "raft.election_timeout_max_ms")),
    )
    _address("rpc_addr", cluster.rpc_addr)
    if not cluster.heartbeat_interval_ms < cluster.election_timeout_min_ms <= cluster.election_timeout_max_ms:
        raise _Refused(
            "raft.election_timeout_min_ms",
            "raft: heartbeat_interval_ms must be less than election_timeout_min_ms, and that at most "
            "election_timeout_max_ms",
        )
    return cluster


def _member(text: str) -> Member:
    key = "cluster.initial_members"
    parts = text.split("@")
    if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
        raise _Refused(key, f"{key}: {text!r} is not node_id@api_addr@rpc_addr")
    for address in parts[1:]:
        _address(key, address)
    return Member(node_id=int(parts[0]), api_addr=parts[1], rpc_addr=parts[2])


def _address(key: str, text: str) -> None:
    try:
        split_address(text)
    except InvalidConfig as error:
        raise _Refused(key, f"{key}: {error}") from None


def _gateway(texts: Mapping[str, str]) -> GatewaySettings:
    return GatewaySettings(
        enabled=_text(texts, "gateway.enabled") == "true",
        host=_text(texts, "host"),
        port=int(_text(texts, "port")),
        acks=_text(texts, "acks"),
        retries=int(_text(texts, "retries")),
        retry_backoff_ms=int(_text(texts, "retry_backoff_ms")),
        max_poll_records=int(_text(texts, "max_poll_records")),
        session_timeout_ms=int(_text(texts, "session_timeout_ms")),
        linger_ms=int(_text(texts, "gateway.linger.ms")),
        body_bytes_max=int(_text(texts, "gateway.body.max.bytes")),
    )


def _text(texts: Mapping[str, str], key: str) -> str:
    return texts.get(key) or NODE_CONFIGS[key].default_text or ""
