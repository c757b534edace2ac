"""Builds Settings from checked key-value texts, and refuses combinations that cannot work.

Decides what a valid set of listeners and a data directory is; what a cluster is, `settings_cluster.py` does. Knows
nothing of where the texts came from: `refuse(key, reason)` lets the caller say it.
"""

from collections.abc import Callable, Mapping

from headrace.app.settings_cluster import Refused, cluster_of, etcd_of, metadata_of, text_of
from headrace.model.configs import BROKER_CONFIGS
from headrace.model.errors import InvalidConfig
from headrace.model.settings import (
    EVERY_INTERFACE,
    GatewaySettings,
    Listener,
    Settings,
    TelemetrySettings,
    split_address,
)

Refuse = Callable[[str, str], None]


def build_settings(texts: Mapping[str, str], refuse: Refuse) -> Settings | None:
    """Settings of canonical texts by key; None after at least one call of `refuse`."""
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
    except Refused as refused:
        refuse(refused.key, str(refused))
        return None


def _listeners(texts: Mapping[str, str], key: str) -> tuple[Listener, ...]:
    if key not in texts:
        return ()
    try:
        listeners = tuple(Listener.parse(item) for item in texts[key].split(",") if item)
    except InvalidConfig as error:
        raise Refused(key, f"{key}: {error}") from None
    if not listeners:
        raise Refused(key, f"{key} is empty; write NAME://host:port or leave it out")
    return listeners


def _check_listeners(listeners: tuple[Listener, ...], texts: Mapping[str, str]) -> None:
    protocols = _protocols(texts)
    seen: dict[str, Listener] = {}
    for listener in listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise Refused(
                "listeners",
                f"listeners: {listener.name} is not in listener.security.protocol.map; add it there",
            )
        if protocol != "PLAINTEXT":
            raise Refused(
                "listeners",
                f"listeners: {listener} would speak {protocol}; this version speaks PLAINTEXT only",
            )
        if listener.name in seen:
            raise Refused(
                "listeners", f"listeners: {seen[listener.name]} and {listener} have the same name; rename one"
            )
        seen[listener.name] = listener
    addresses = [(listener.host, listener.port) for listener in listeners if listener.port != 0]
    if len(set(addresses)) != len(addresses):
        raise Refused("listeners", "listeners: two of them have the same address; change one port")
    inter_broker = texts.get("inter.broker.listener.name")
    if inter_broker and inter_broker.upper() not in seen:
        raise Refused("inter.broker.listener.name", f"inter.broker.listener.name: no listener is called {inter_broker}")


def _protocols(texts: Mapping[str, str]) -> dict[str, str]:
    key = "listener.security.protocol.map"
    text = texts.get(key) or BROKER_CONFIGS[key].default_text or ""
    pairs = [item.strip().partition(":") for item in text.split(",") if item.strip()]
    for name, colon, protocol in pairs:
        if not (name and colon and protocol):
            raise Refused(key, f"{key}: write NAME:PROTOCOL pairs, e.g. INTERNAL:PLAINTEXT")
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}


def _check_advertised(advertised: tuple[Listener, ...], listeners: tuple[Listener, ...]) -> None:
    key = "advertised.listeners"
    names = {listener.name for listener in listeners}
    for listener in advertised:
        if listener.name not in names:
            raise Refused(key, f"{key}: no listener is called {listener.name}; add it to listeners")
        if listener.host in EVERY_INTERFACE:
            raise Refused(key, f"{key}: clients cannot connect to {listener}; name a host that they can reach")
    if len({listener.name for listener in advertised}) != len(advertised):
        raise Refused(key, f"{key}: one name stands twice; advertise one address per listener")


def _data_dir(texts: Mapping[str, str]) -> str:
    directories = [item for item in texts.get("log.dirs", "").split(",") if item]
    if "log.dirs" not in texts:
        return Settings().data_dir
    if len(directories) != 1:
        raise Refused("log.dirs", "log.dirs: a node has exactly one data directory; run a node per disk instead")
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
            raise Refused("metrics_addr", f"metrics_addr: {error}") from None
    tracing = text_of(texts, "tracing.enabled") == "true"
    if tracing:
        from headrace.app.tracing import check_installed

        try:
            check_installed()
        except InvalidConfig as error:
            raise Refused("tracing.enabled", str(error)) from None
    return TelemetrySettings(metrics_addr=address, log_format=text_of(texts, "logging.format"), tracing=tracing)
