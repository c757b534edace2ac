"""Builds the typed settings of a node from canonical texts.

Validates listeners, data directory, cluster and etcd settings. Reads no files and uses no network. `refuse(key,
reason)` reports errors, so that the caller can add the source of a setting.
"""

from collections.abc import Callable, Mapping

from headrace.config.etcd_address import SCHEME, parse_endpoints
from headrace.config.keys.node import NODE_CONFIGS
from headrace.config.settings import (
    EVERY_INTERFACE,
    ClusterSettings,
    EtcdSettings,
    GatewaySettings,
    Listener,
    Member,
    Settings,
    TelemetrySettings,
    split_address,
)
from headrace.config.values import BROKER_CONFIGS
from headrace.model.errors import InvalidConfig

_MEMBERS = "cluster.initial_members"
UNIX_SCHEME = "unix://"


class SettingError(Exception):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def text_of(texts: Mapping[str, str], key: str) -> str:
    return texts.get(key) or NODE_CONFIGS[key].default_text or ""


def metadata_of(texts: Mapping[str, str]) -> str:
    text = texts.get("metadata", "")
    if not text or (text.startswith(UNIX_SCHEME) and text[len(UNIX_SCHEME) :].startswith("/")):
        return text
    if not text.startswith(SCHEME):
        raise SettingError("metadata", f"metadata: {text!r} is neither {SCHEME}host:port,… nor {UNIX_SCHEME}/path")
    try:
        parse_endpoints(text)
    except InvalidConfig as error:
        raise SettingError("metadata", f"metadata: {error}") from None
    return text


def cluster_of(texts: Mapping[str, str]) -> ClusterSettings:
    members = tuple(_member(item) for item in texts.get(_MEMBERS, "").split(",") if item)
    _check_members(members)
    node_id = int(texts.get("node.id", Settings().node_id))
    own = next((member for member in members if member.node_id == node_id), None)
    rpc_addr = texts.get("rpc_addr") or (own.rpc_addr if own is not None else text_of(texts, "rpc_addr"))
    cluster = ClusterSettings(
        rpc_addr=rpc_addr,
        initial_members=members,
        bootstrap=text_of(texts, "cluster.bootstrap") == "true",
        heartbeat_interval_ms=int(text_of(texts, "raft.heartbeat_interval_ms")),
        election_timeout_min_ms=int(text_of(texts, "raft.election_timeout_min_ms")),
        election_timeout_max_ms=int(text_of(texts, "raft.election_timeout_max_ms")),
    )
    _address("rpc_addr", cluster.rpc_addr)
    if own is not None and own.rpc_addr != rpc_addr:
        raise SettingError("rpc_addr", f"rpc_addr is {rpc_addr}, but {_MEMBERS} gives node {node_id} {own.rpc_addr}")
    if cluster.bootstrap and members and own is None:
        raise SettingError(
            "cluster.bootstrap",
            f"cluster.bootstrap: node {node_id} is not among {_MEMBERS}, so it cannot found the cluster",
        )
    _check_timers(cluster)
    return cluster


def etcd_of(texts: Mapping[str, str]) -> EtcdSettings:
    client_addr = texts.get("etcd.client_addr", "")
    if client_addr:
        _address("etcd.client_addr", client_addr)
    etcd = EtcdSettings(
        program=text_of(texts, "etcd.program"),
        client_addr=client_addr,
        election_timeout_cap_ms=int(text_of(texts, "etcd.election_timeout_cap_ms")),
        user=texts.get("etcd.user", ""),
        password_file=texts.get("etcd.password_file", ""),
        ca_file=texts.get("etcd.ca_file", ""),
        cert_file=texts.get("etcd.cert_file", ""),
        key_file=texts.get("etcd.key_file", ""),
    )
    if bool(etcd.user) != bool(etcd.password_file):
        raise SettingError("etcd.user", "etcd.user and etcd.password_file belong together; set both or none")
    if bool(etcd.cert_file) != bool(etcd.key_file):
        raise SettingError("etcd.cert_file", "etcd.cert_file and etcd.key_file belong together; set both or none")
    return etcd


def _check_members(members: tuple[Member, ...]) -> None:
    for what in ("node_id", "api_addr", "rpc_addr"):
        values = [str(getattr(member, what)) for member in members]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise SettingError(_MEMBERS, f"{_MEMBERS}: two members have the {what} {twice}; give each its own")


def _check_timers(cluster: ClusterSettings) -> None:
    if not cluster.heartbeat_interval_ms < cluster.election_timeout_min_ms <= cluster.election_timeout_max_ms:
        raise SettingError(
            "raft.election_timeout_min_ms",
            "raft: heartbeat_interval_ms must be less than election_timeout_min_ms, and that at most "
            "election_timeout_max_ms",
        )


def _member(text: str) -> Member:
    parts = text.split("@")
    if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
        raise SettingError(_MEMBERS, f"{_MEMBERS}: {text!r} is not node_id@api_addr@rpc_addr")
    for address in parts[1:]:
        _address(_MEMBERS, address)
    return Member(node_id=int(parts[0]), api_addr=parts[1], rpc_addr=parts[2])


def _address(key: str, text: str) -> None:
    try:
        split_address(text)
    except InvalidConfig as error:
        raise SettingError(key, f"{key}: {error}") from None


Refuse = Callable[[str, str], None]


def build_settings(texts: Mapping[str, str], refuse: Refuse) -> Settings | None:
    """Returns settings from canonical texts by key; None after at least one call of `refuse`."""
    try:
        listeners = _listeners(texts, "listeners") or Settings().listeners
        _check_listeners(listeners, texts)
        advertised = _listeners(texts, "advertised.listeners")
        _check_advertised(advertised, listeners)
        return Settings(
            node_id=int(texts.get("node.id", Settings().node_id)),
            cluster_id=texts.get("cluster.id"),
            rack=texts.get("broker.rack"),
            listeners=listeners,
            advertised=advertised,
            data_dir=_data_dir(texts),
            storage=texts.get("storage", Settings().storage),
            broker_configs={key: text for key, text in texts.items() if key in BROKER_CONFIGS},
            metadata=metadata_of(texts),
            cluster=cluster_of(texts),
            etcd=etcd_of(texts),
            gateway=_gateway(texts),
            telemetry=_telemetry(texts),
        )
    except SettingError as refused:
        refuse(refused.key, str(refused))
        return None


def _listeners(texts: Mapping[str, str], key: str) -> tuple[Listener, ...]:
    if key not in texts:
        return ()
    try:
        listeners = tuple(Listener.parse(item) for item in texts[key].split(",") if item)
    except InvalidConfig as error:
        raise SettingError(key, f"{key}: {error}") from None
    if not listeners:
        raise SettingError(key, f"{key} is empty; write NAME://host:port or leave it out")
    return listeners


def _check_listeners(listeners: tuple[Listener, ...], texts: Mapping[str, str]) -> None:
    protocols = _protocols(texts)
    seen: dict[str, Listener] = {}
    for listener in listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise SettingError(
                "listeners",
                f"listeners: {listener.name} is not in listener.security.protocol.map; add it there",
            )
        if protocol != "PLAINTEXT":
            raise SettingError(
                "listeners",
                f"listeners: {listener} would speak {protocol}; this version speaks PLAINTEXT only",
            )
        if listener.name in seen:
            raise SettingError(
                "listeners", f"listeners: {seen[listener.name]} and {listener} have the same name; rename one"
            )
        seen[listener.name] = listener
    addresses = [(listener.host, listener.port) for listener in listeners if listener.port != 0]
    if len(set(addresses)) != len(addresses):
        raise SettingError("listeners", "listeners: two of them have the same address; change one port")
    inter_broker = texts.get("inter.broker.listener.name")
    if inter_broker and inter_broker.upper() not in seen:
        raise SettingError(
            "inter.broker.listener.name", f"inter.broker.listener.name: no listener is called {inter_broker}"
        )


def _protocols(texts: Mapping[str, str]) -> dict[str, str]:
    key = "listener.security.protocol.map"
    text = texts.get(key) or BROKER_CONFIGS[key].default_text or ""
    pairs = [item.strip().partition(":") for item in text.split(",") if item.strip()]
    for name, colon, protocol in pairs:
        if not (name and colon and protocol):
            raise SettingError(key, f"{key}: write NAME:PROTOCOL pairs, e.g. INTERNAL:PLAINTEXT")
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}


def _check_advertised(advertised: tuple[Listener, ...], listeners: tuple[Listener, ...]) -> None:
    key = "advertised.listeners"
    names = {listener.name for listener in listeners}
    for listener in advertised:
        if listener.name not in names:
            raise SettingError(key, f"{key}: no listener is called {listener.name}; add it to listeners")
        if listener.host in EVERY_INTERFACE:
            raise SettingError(key, f"{key}: clients cannot connect to {listener}; name a host that they can reach")
    if len({listener.name for listener in advertised}) != len(advertised):
        raise SettingError(key, f"{key}: one name stands twice; advertise one address per listener")


def _data_dir(texts: Mapping[str, str]) -> str:
    directories = [item for item in texts.get("log.dirs", "").split(",") if item]
    if "log.dirs" not in texts:
        return Settings().data_dir
    if len(directories) != 1:
        raise SettingError("log.dirs", "log.dirs: a node has exactly one data directory; run a node per disk instead")
    return directories[0]


def _gateway(texts: Mapping[str, str]) -> GatewaySettings:
    return GatewaySettings(
        enabled=text_of(texts, "gateway.enabled") == "true",
        host=text_of(texts, "host"),
        port=int(text_of(texts, "port")),
        grpc_host=text_of(texts, "grpc.host"),
        grpc_port=int(text_of(texts, "grpc.port")),
        port_moves="port" not in texts,
        grpc_port_moves="grpc.port" not in texts,
        acks=text_of(texts, "acks"),
        retries=int(text_of(texts, "retries")),
        retry_backoff_ms=int(text_of(texts, "retry_backoff_ms")),
        max_poll_records=int(text_of(texts, "max_poll_records")),
        session_timeout_ms=int(text_of(texts, "session_timeout_ms")),
        linger_ms=int(text_of(texts, "gateway.linger.ms")),
        nice=int(text_of(texts, "gateway.nice")),
        body_bytes_max=int(text_of(texts, "gateway.body.max.bytes")),
    )


def _telemetry(texts: Mapping[str, str]) -> TelemetrySettings:
    address = texts.get("metrics_addr", "")
    if address:
        try:
            split_address(address)
        except InvalidConfig as error:
            raise SettingError("metrics_addr", f"metrics_addr: {error}") from None
    tracing = text_of(texts, "tracing.enabled") == "true"
    if tracing:
        from headrace.telemetry.tracing import check_installed

        try:
            check_installed()
        except InvalidConfig as error:
            raise SettingError("tracing.enabled", str(error)) from None
    return TelemetrySettings(metrics_addr=address, log_format=text_of(texts, "logging.format"), tracing=tracing)
