"""Node config keys that are not Kafka's, aliases of Kafka's keys, and Kafka's keys that are rejected, with the
reasons.

Tables and lookups only; `config/loader.py` reads the sources.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.config.definition import BOOLEAN, INT, INT_MAX, LIST, STRING, ConfigDef, OneOf, Range, nearest
from headrace.config.settings import (
    LOG_FORMATS,
    PORT_MAX,
    STORAGE_KINDS,
    ClusterSettings,
    EtcdSettings,
    GatewaySettings,
    TelemetrySettings,
)
from headrace.config.values import BROKER_CONFIGS, TOPIC_CONFIGS
from headrace.model.errors import InvalidConfig

_CLUSTER = ClusterSettings()
_ETCD = EtcdSettings()
_GATEWAY = GatewaySettings()
_TELEMETRY = TelemetrySettings()

ELECTION_MS_MAX = 50_000  # etcd's maximum
ELECTION_MS_MIN = 10  # minimum of the cap: five heartbeats of 2 ms

# fmt: off
_OWN = (
    ConfigDef("storage", STRING, "disk",
        "Where partitions are stored: `disk`, or `memory` (nothing is written to disk, and all records are lost when "
        "the node stops; also: --memory).", OneOf(STORAGE_KINDS)),
    ConfigDef("memtx_dir", STRING, None,
        "Accepted for configuration files of systems that keep an index in a directory of its own; all data is in "
        "storage_path."),
    ConfigDef("vinyl_dir", STRING, None,
        "Accepted for configuration files of systems that keep messages in a directory of their own; all data is in "
        "storage_path."),
    ConfigDef("cluster.id", STRING, None,
        "The cluster's id. Unset: generated at the first start and stored in the data directory."),
    ConfigDef("metadata", STRING, None,
        "The metadata store: `etcd://host:port,…[/prefix]` for an existing etcd, `unix:///path` for a store that the "
        "brokers of one host share. Unset: an etcd member on this node if cluster.initial_members is set, "
        "else a file in the data directory."),
)

_CLUSTER_ROWS = (
    ConfigDef("rpc_addr", STRING, _CLUSTER.rpc_addr,
        "Address for the traffic between etcd members. Unset: the one in cluster.initial_members."),
    ConfigDef("cluster.initial_members", LIST, (),
        "The nodes that run an etcd member, each with node_id, api_addr and rpc_addr (as text: id@api_addr@rpc_addr). "
        "A node that is not among them uses their etcd."),
    ConfigDef("cluster.bootstrap", BOOLEAN, _CLUSTER.bootstrap,
        "True on the one node that creates the cluster; the others join it."),
    ConfigDef("raft.heartbeat_interval_ms", INT, _CLUSTER.heartbeat_interval_ms,
        "Heartbeat interval of etcd's leader; at most a fifth of the election timeout is used.", Range(1)),
    ConfigDef("raft.election_timeout_min_ms", INT, _CLUSTER.election_timeout_min_ms,
        "Minimum election timeout of etcd, up to etcd.election_timeout_cap_ms.",
        Range(1, ELECTION_MS_MAX)),
    ConfigDef("raft.election_timeout_max_ms", INT, _CLUSTER.election_timeout_max_ms,
        "Maximum election timeout of etcd, which itself uses up to twice the minimum.", Range(1)),
)

_ETCD_ROWS = (
    ConfigDef("etcd.program", STRING, _ETCD.program,
        "The etcd program that this node starts for its member: a name on the PATH, or a path."),
    ConfigDef("etcd.client_addr", STRING, None,
        "Where this node's etcd member serves brokers; port 0 is any free one. Unset: rpc_addr with its port raised "
        "by 10000."),
    ConfigDef("etcd.election_timeout_cap_ms", INT, _ETCD.election_timeout_cap_ms,
        "Maximum election timeout of this node's etcd member, regardless of raft.*: failover waits for etcd. Raise "
        "it where ten round trips between members, or one sync of a member's disk, take longer.",
        Range(ELECTION_MS_MIN, ELECTION_MS_MAX)),
    ConfigDef("etcd.user", STRING, None,
        "User name for etcd."),
    ConfigDef("etcd.password_file", STRING, None,
        "File with the password of etcd.user."),
    ConfigDef("etcd.ca_file", STRING, None,
        "Certificate authorities to trust (PEM). With cert_file and key_file, connections to etcd use TLS, and the "
        "etcd member of this node requires client certificates."),
    ConfigDef("etcd.cert_file", STRING, None,
        "This node's certificate (PEM), for servers and for clients."),
    ConfigDef("etcd.key_file", STRING, None,
        "The key of the certificate (PEM)."),
)

_GATEWAY_ROWS = (
    ConfigDef("gateway.enabled", BOOLEAN, _GATEWAY.enabled,
        "Whether a REST and a gRPC process run with the broker (also: --no-gateway)."),
    ConfigDef("host", STRING, _GATEWAY.host,
        "Address of the REST server: 127.0.0.1 accepts connections from this host only, 0.0.0.0 from everywhere."),
    ConfigDef("port", INT, _GATEWAY.port,
        "Port of the REST server. Unset: 8080, or the next free one.", Range(0, PORT_MAX)),
    ConfigDef("grpc.host", STRING, _GATEWAY.grpc_host,
        "Address of the gRPC server: 127.0.0.1 accepts connections from this host only, 0.0.0.0 from everywhere "
        "(also: --grpc)."),
    ConfigDef("grpc.port", INT, _GATEWAY.grpc_port,
        "Port of the gRPC server. Unset: 9090, or the next free one that no broker uses.", Range(0, PORT_MAX)),
    ConfigDef("acks", STRING, _GATEWAY.acks,
        "Acknowledgement of messages sent by REST or gRPC: `all` in-sync replicas, the `leader`, or `none`.",
        OneOf(("all", "leader", "none"))),
    ConfigDef("retries", INT, _GATEWAY.retries,
        "How often the gateway retries sending a message.", Range(0, INT_MAX)),
    ConfigDef("retry_backoff_ms", INT, _GATEWAY.retry_backoff_ms,
        "Pause before each retry.", Range(0)),
    ConfigDef("max_poll_records", INT, _GATEWAY.max_poll_records,
        "Maximum messages of one REST response.", Range(1)),
    ConfigDef("session_timeout_ms", INT, _GATEWAY.session_timeout_ms,
        "A REST consumer without requests for this long is removed.", Range(1)),
    ConfigDef("gateway.linger.ms", INT, _GATEWAY.linger_ms,
        "How long the gateway waits for more messages, to send them in one batch. Under many concurrent REST "
        "requests it waits up to three times as long in addition, at most 10 ms.", Range(0, 1000)),
    ConfigDef("gateway.body.max.bytes", INT, _GATEWAY.body_bytes_max,
        "Maximum size of a REST request that is not a stream, and of a gRPC request.", Range(1024, INT_MAX)),
    ConfigDef("gateway.nice", INT, _GATEWAY.nice,
        "Niceness of the REST and gRPC processes, added to the broker's own `nice`. With 5 they get a third of the "
        "processor time of other processes on a busy host; 0 makes all equal.", Range(0, 19)),
)
_TELEMETRY_ROWS = (
    ConfigDef("metrics_addr", STRING, None,
        "Address at which the broker itself serves /metrics, /health and /ready (also: --metrics). Unset: only the "
        "REST server serves them, for all processes of the node."),
    ConfigDef("logging.format", STRING, _TELEMETRY.log_format,
        "How log lines are written to stderr: `text` for people, `json` for machines.", OneOf(LOG_FORMATS)),
    ConfigDef("tracing.enabled", BOOLEAN, _TELEMETRY.tracing,
        "Trace REST and gRPC requests with OpenTelemetry; needs `headrace[otel]`. OpenTelemetry's own variables, "
        "e.g. OTEL_EXPORTER_OTLP_ENDPOINT, configure the exporter."),
)
# fmt: on

NODE_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config for config in (*_OWN, *_CLUSTER_ROWS, *_ETCD_ROWS, *_GATEWAY_ROWS, *_TELEMETRY_ROWS)
}
CLUSTER_KEYS = frozenset(config.name for config in _CLUSTER_ROWS)
ETCD_KEYS = frozenset(config.name for config in _ETCD_ROWS)
GATEWAY_KEYS = frozenset(config.name for config in _GATEWAY_ROWS)


class Alias(NamedTuple):
    """Another name of a key. Its values are multiplied by `unit`, or get a `prefix`."""

    key: str
    unit: int = 1
    prefix: str = ""


ALIASES: Mapping[str, Alias] = {
    "node_id": Alias("node.id"),
    "broker.id": Alias("node.id"),
    "api_addr": Alias("listeners", prefix="PLAINTEXT://"),
    "storage_path": Alias("log.dirs"),
    "log.dir": Alias("log.dirs"),
    "default_partitions": Alias("num.partitions"),
    "default_replication_factor": Alias("default.replication.factor"),
    "default_retention_seconds": Alias("log.retention.ms", unit=1000),
    "default_retention_bytes": Alias("log.retention.bytes"),
    "request_timeout_ms": Alias("request.timeout.ms"),
}

# Keys with the same meaning in different units; the first one that is set wins, as in Kafka.
SAME_MEANING: tuple[tuple[str, ...], ...] = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)

# Prefixes of Kafka's keys that are not supported, and the reason.
_KAFKA_ONLY = (
    ("process.roles", "every headrace node is broker and controller"),
    ("controller.", "headrace has no separate controllers; remove the key"),
    ("zookeeper.", "headrace needs no ZooKeeper; remove the key"),
    ("metadata.", "headrace stores cluster metadata in its own store; remove the key"),
    ("num.network.threads", "a node runs on one event loop; remove the key"),
    ("num.io.threads", "a node runs on one event loop; remove the key"),
    ("background.threads", "a node runs on one event loop; remove the key"),
    ("remote.log.", "headrace does not tier to remote storage yet"),
    ("ssl.", "this version speaks PLAINTEXT only"),
    ("sasl.", "this version speaks PLAINTEXT only"),
    ("security.", "this version speaks PLAINTEXT only"),
    ("authorizer.", "this version allows every request"),
    ("metric", "headrace has no JVM metrics reporters; remove the key"),
    ("kafka.metrics.", "headrace has no JVM metrics reporters; remove the key"),
    ("group.streams.", "headrace does not coordinate streams groups; remove the key"),
)


def find_config(name: str) -> tuple[ConfigDef, Alias]:
    """Returns the key for `name`, and how to convert its value. Raises InvalidConfig with the most similar key."""
    alias = ALIASES.get(name) or Alias(name)
    definition = BROKER_CONFIGS.get(alias.key) or NODE_CONFIGS.get(alias.key)
    if definition is not None:
        return definition, alias
    raise _unknown(name)


def known_names() -> list[str]:
    """Returns every name that config files, environment variables and flags may use."""
    return sorted({*BROKER_CONFIGS, *NODE_CONFIGS, *ALIASES})


def _unknown(name: str) -> InvalidConfig:
    topic_config = TOPIC_CONFIGS.get(name)
    if topic_config is not None:
        default_of = topic_config.synonyms[0] if topic_config.synonyms else None
        hint = f"; the default for all topics is {default_of}" if default_of else ""
        return InvalidConfig(f"{name} is a key of topics, not of nodes{hint}")
    for beginning, reason in _KAFKA_ONLY:
        if name.startswith(beginning):
            return InvalidConfig(f"{name} is a Kafka key without a meaning here: {reason}")
    close = nearest(name, known_names())
    hint = f"; did you mean {close}?" if close else "; `headrace config docs` lists all keys"
    return InvalidConfig(f"unknown key {name}{hint}")
