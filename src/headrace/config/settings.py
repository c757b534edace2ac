"""Typed, immutable settings of one node.

Parses addresses and returns the static values of broker configs. The sources (file, environment, flags) are read by
`config/loader.py`. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config.values import BROKER_CONFIGS, ConfigValue, unknown_config
from headrace.model.errors import InvalidConfig

PORT_MAX = 65535
STORAGE_KINDS = ("disk", "memory")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener: NAME://host:port. An empty host means all interfaces, port 0 any free one."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Listener":
        name, separator, address = text.strip().partition("://")
        if not separator or not name.isascii() or not name.replace("_", "").replace("-", "").isalnum():
            raise InvalidConfig(f"{text!r} is not a listener; write NAME://host:port")
        host, port = split_address(address)
        return cls(name.upper(), host, port)

    def __str__(self) -> str:
        return f"{self.name}://{join_address(self.host, self.port)}"


# Wildcard addresses: valid to listen on, but clients on other hosts cannot connect to them.
EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (compared with, never bound)


def split_address(text: str) -> tuple[str, int]:
    """Parses `host:port`, `[v6]:port` or `:port`."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        raise InvalidConfig(f"{text!r} is not an address; an IPv6 host stands in brackets: [::1]:9092")
    if not colon or not (port.isascii() and port.isdigit()) or int(port[:6]) > PORT_MAX:
        raise InvalidConfig(f"{text!r} is not an address; write host:port with a port from 0 to {PORT_MAX}")
    if any(character.isspace() or character in "/,@" for character in host):
        raise InvalidConfig(f"{text!r} is not an address; a host has no spaces, commas or slashes")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of `cluster.initial_members`."""

    node_id: int
    api_addr: str
    rpc_addr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The other nodes, and the timing of their consensus."""

    rpc_addr: str = "127.0.0.1:19092"
    initial_members: tuple[Member, ...] = ()
    bootstrap: bool = False
    # For hosts on one network: a new leader within a second, and leases as short as one. etcd's own defaults are for
    # slower networks, and twice as long.
    heartbeat_interval_ms: int = 100
    election_timeout_min_ms: int = 500
    election_timeout_max_ms: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Access to the etcd that stores the cluster metadata, and settings of the node's own etcd member."""

    program: str = "etcd"
    client_addr: str = ""  # of the node's own member; empty: next to `rpc_addr`
    # Failover depends on etcd: a session is at least 1.5 election timeouts, and an election takes up to two. One second
    # is etcd's default, and allows sessions of two.
    election_timeout_cap_ms: int = 1000
    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Addresses of the REST and gRPC processes, and settings of their Kafka clients."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_host: str = "127.0.0.1"
    grpc_port: int = 9090
    # Whether the next free port replaces one that is in use. True for ports that no setting names.
    port_moves: bool = False
    grpc_port_moves: bool = False
    acks: str = "all"
    retries: int = 3
    retry_backoff_ms: int = 100
    max_poll_records: int = 500
    session_timeout_ms: int = 30_000
    linger_ms: int = 1
    body_bytes_max: int = 16 * 1024 * 1024
    nice: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """The broker's metrics address, and log format and tracing of all processes of the node."""

    metrics_addr: str = ""  # empty: metrics are served by the gateway only
    log_format: str = "text"
    tracing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a node."""

    node_id: int = 1
    cluster_id: str | None = None
    rack: str | None = None
    listeners: tuple[Listener, ...] = (Listener("PLAINTEXT", "localhost", 9092),)
    advertised: tuple[Listener, ...] = ()  # empty: the listeners, with their actual ports
    data_dir: str = "./data"
    storage: str = "disk"
    # Only configs that are set, by Kafka's names, as validated canonical text: DescribeConfigs distinguishes these from
    # defaults.
    broker_configs: Mapping[str, str] = field(default_factory=dict)
    metadata: str = ""  # etcd://host:port,… or unix:///path; empty: the node's own store, embedded or an etcd member
    cluster: ClusterSettings = ClusterSettings()
    etcd: EtcdSettings = EtcdSettings()
    gateway: GatewaySettings = GatewaySettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @property
    def in_memory(self) -> bool:
        return self.storage == "memory"

    @property
    def internal_listener(self) -> str:
        """Returns the listener for traffic between brokers: `inter.broker.listener.name`, else the first."""
        return self.broker_configs.get("inter.broker.listener.name") or self.listeners[0].name

    @property
    def is_clustered(self) -> bool:
        """Returns whether other brokers may use the same metadata store."""
        return bool(self.metadata or self.cluster.initial_members)

    @property
    def runs_etcd(self) -> bool:
        """Returns whether this node runs an etcd member: it is an initial member, and no other store is configured."""
        return not self.metadata and any(one.node_id == self.node_id for one in self.cluster.initial_members)

    @property
    def broker_ports(self) -> frozenset[int]:
        """Returns the ports of this broker's listeners and of the cluster's members, as far as configured."""
        members = [address for one in self.cluster.initial_members for address in (one.api_addr, one.rpc_addr)]
        addresses = [*members, self.cluster.rpc_addr, self.etcd.client_addr]
        known = {split_address(address)[1] for address in addresses if address}
        return frozenset(known | {one.port for one in self.listeners})

    def config(self, name: str) -> ConfigValue:
        """Returns the static value of a broker config, or its default."""
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            raise unknown_config(name, BROKER_CONFIGS, "broker")
        known = self._from_field(name)
        if known is not None:
            return known
        text = self.broker_configs.get(name)
        value = definition.default if text is None else definition.parse(text)
        if value is None:
            raise InvalidConfig(f"{name} is not set and has no default; use `is_set` or its synonyms")
        return value

    def integer(self, name: str) -> int:
        value = self.config(name)
        assert isinstance(value, int), f"{name} is not a number"
        return value

    def flag(self, name: str) -> bool:
        value = self.config(name)
        assert isinstance(value, bool), f"{name} is not true or false"
        return value

    def is_set(self, name: str) -> bool:
        return name in self.broker_configs

    def _from_field(self, name: str) -> ConfigValue | None:
        """Returns the value of a broker config that is a typed field, by each of its names."""
        match name:
            case "node.id" | "broker.id":
                return self.node_id
            case "broker.rack":
                return self.rack or ""
            case "listeners":
                return tuple(map(str, self.listeners))
            case "advertised.listeners":
                return tuple(map(str, self.advertised or self.listeners))
            case "log.dirs" | "log.dir":
                return (self.data_dir,)
            case _:
                return None

    def to_json(self) -> str:
        """Returns one line that `from_json` parses, for handing settings to a child process."""
        import json
        from dataclasses import asdict

        return json.dumps(
            {
                **asdict(self),
                "listeners": [str(listener) for listener in self.listeners],
                "advertised": [str(listener) for listener in self.advertised],
                "broker_configs": dict(self.broker_configs),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        import json

        fields: dict[str, Any] = json.loads(text)
        for name in ("listeners", "advertised"):
            if name in fields:
                fields[name] = tuple(map(Listener.parse, fields[name]))
        if "cluster" in fields:
            members = tuple(Member(**member) for member in fields["cluster"].pop("initial_members", ()))
            fields["cluster"] = ClusterSettings(**fields["cluster"], initial_members=members)
        if "etcd" in fields:
            fields["etcd"] = EtcdSettings(**fields["etcd"])
        if "gateway" in fields:
            fields["gateway"] = GatewaySettings(**fields["gateway"])
        if "telemetry" in fields:
            fields["telemetry"] = TelemetrySettings(**fields["telemetry"])
        return cls(**fields)
