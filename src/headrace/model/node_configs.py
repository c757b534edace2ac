"""The keys of a node's config file that are not Kafka's, and the second names of those that are.

Decides which key a written name means, and why some of Kafka's names are refused. Tables and look-ups only;
`app/config_file.py` reads the sources.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.model.config_def import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    STRING,
    ConfigDef,
    OneOf,
    Range,
    nearest,
)
from headrace.model.configs import BROKER_CONFIGS, TOPIC_CONFIGS
from headrace.model.errors import InvalidConfig
from headrace.model.settings import (
    LOG_FORMATS,
    PORT_MAX,
    STORAGE_KINDS,
    ClusterSettings,
    EtcdSettings,
    GatewaySettings,
    TelemetrySettings,
)

_CLUSTER = ClusterSettings()
_ETCD = EtcdSettings()
_GATEWAY = GatewaySettings()
_TELEMETRY = TelemetrySettings()

ELECTION_MS_MAX = 50_000  # etcd refuses to wait longer
ELECTION_MS_MIN = 10  # of the cap: five heartbeats of 2 ms

# fmt: off
_OWN = (
    ConfigDef("storage", STRING, "disk",
        "Where partitions live: `disk`, or `memory` (nothing touches the disk, all is gone at the end; "
        "also: --memory).", OneOf(STORAGE_KINDS)),
    ConfigDef("memtx_dir", STRING, None,
        "Accepted for config files of systems that keep an index in a directory of its own; all data is in "
        "storage_path."),
    ConfigDef("vinyl_dir", STRING, None,
        "Accepted for config files of systems that keep messages in a directory of their own; all data is in "
        "storage_path."),
    ConfigDef("cluster.id", STRING, None,
        "The cluster's id. Unset: one is made up at the first start and kept in the data directory."),
    ConfigDef("metadata", STRING, None,
        "Where the cluster's facts live: `etcd://host:port,…[/prefix]` is an etcd that is there already, "
        "`unix:///path` a store that brokers of one machine share. Unset: an etcd member of this node's own if there "
        "are cluster.initial_members, else a file in the data directory."),
)

_CLUSTER_ROWS = (
    ConfigDef("rpc_addr", STRING, _CLUSTER.rpc_addr,
        "Where this node's etcd member speaks with the other members. Unset: as cluster.initial_members has it."),
    ConfigDef("cluster.initial_members", LIST, (),
        "The nodes that run an etcd member, each with node_id, api_addr and rpc_addr (as text: id@api_addr@rpc_addr). "
        "A node that is not among them uses their etcd."),
    ConfigDef("cluster.bootstrap", BOOLEAN, _CLUSTER.bootstrap,
        "True on the one node that founds the cluster; the others join it."),
    ConfigDef("raft.heartbeat_interval_ms", INT, _CLUSTER.heartbeat_interval_ms,
        "How often etcd's leader reports; at most a fifth of the election timeout is used.", Range(1)),
    ConfigDef("raft.election_timeout_min_ms", INT, _CLUSTER.election_timeout_min_ms,
        "Shortest silence after which etcd elects a new leader, up to etcd.election_timeout_cap_ms.",
        Range(1, ELECTION_MS_MAX)),
    ConfigDef("raft.election_timeout_max_ms", INT, _CLUSTER.election_timeout_max_ms,
        "Longest such silence; etcd itself takes twice the shortest.", Range(1)),
)

_ETCD_ROWS = (
    ConfigDef("etcd.program", STRING, _ETCD.program,
        "The etcd that this node starts for its member: a name on the PATH, or a path."),
    ConfigDef("etcd.client_addr", STRING, None,
        "Where this node's etcd member serves brokers; port 0 is any free one. Unset: rpc_addr with its port "
        "raised by 10000."),
    ConfigDef("etcd.election_timeout_cap_ms", INT, _ETCD.election_timeout_cap_ms,
        "Longest election timeout that this node's etcd member gets, whatever raft.* allows: failover waits for etcd. "
        "Raise it where ten round trips between members, or one sync of a member's disk, take longer.",
        Range(ELECTION_MS_MIN, ELECTION_MS_MAX)),
    ConfigDef("etcd.user", STRING, None,
        "As whom to log in to etcd."),
    ConfigDef("etcd.password_file", STRING, None,
        "A file that holds the password of etcd.user."),
    ConfigDef("etcd.ca_file", STRING, None,
        "Whose certificates to trust (PEM). With cert_file and key_file, etcd is spoken to by TLS, and a member of "
        "this node's own lets in only those who show a certificate."),
    ConfigDef("etcd.cert_file", STRING, None,
        "This node's certificate (PEM), for servers and for clients."),
    ConfigDef("etcd.key_file", STRING, None,
        "The key of the certificate (PEM)."),
)

_GATEWAY_ROWS = (
    ConfigDef("gateway.enabled", BOOLEAN, _GATEWAY.enabled,
        "Whether HTTP and gRPC are served beside the broker, by processes of their own (also: --no-gateway)."),
    ConfigDef("host", STRING, _GATEWAY.host,
        "Where HTTP is served: 127.0.0.1 is this machine only, 0.0.0.0 everywhere."),
    ConfigDef("port", INT, _GATEWAY.port,
        "The HTTP port. Unset: 8080, or the next free one.", Range(0, PORT_MAX)),
    ConfigDef("grpc.host", STRING, _GATEWAY.grpc_host,
        "Where gRPC is served: 127.0.0.1 is this machine only, 0.0.0.0 everywhere (also: --grpc)."),
    ConfigDef("grpc.port", INT, _GATEWAY.grpc_port,
        "The gRPC port. Unset: 9090, or the next free one that is no broker's.", Range(0, PORT_MAX)),
    ConfigDef("acks", STRING, _GATEWAY.acks,
        "What a message that came over HTTP or gRPC waits for: `all` replicas, the `leader`, or `none`.",
        OneOf(("all", "leader", "none"))),
    ConfigDef("retries", INT, _GATEWAY.retries,
        "How often such a message is tried again.", Range(0, INT_MAX)),
    ConfigDef("retry_backoff_ms", INT, _GATEWAY.retry_backoff_ms,
        "Rest before each try.", Range(0)),
    ConfigDef("max_poll_records", INT, _GATEWAY.max_poll_records,
        "Most messages in one HTTP answer.", Range(1)),
    ConfigDef("session_timeout_ms", INT, _GATEWAY.session_timeout_ms,
        "An HTTP consumer that is silent for this long is removed.", Range(1)),
    ConfigDef("gateway.linger.ms", INT, _GATEWAY.linger_ms,
        "How long the gateway waits for more messages, to send them to the broker together. While many come over HTTP "
        "at once, up to three times as long on top, 10 ms at most.", Range(0, 1000)),
    ConfigDef("gateway.body.max.bytes", INT, _GATEWAY.body_bytes_max,
        "The largest HTTP request that is not a stream, and the largest gRPC request.", Range(1024, INT_MAX)),
    ConfigDef("gateway.nice", INT, _GATEWAY.nice,
        "How far HTTP and gRPC step back on busy processors, for the broker and for everybody else: what is added to "
        "the broker's own `nice`. 5 leaves them a third of what others get; 0 makes all equal.", Range(0, 19)),
)
_TELEMETRY_ROWS = (
    ConfigDef("metrics_addr", STRING, None,
        "Where the broker itself answers /metrics, /health and /ready (also: --metrics). Unset: only the HTTP port of "
        "the gateway does, for all processes of the node together."),
    ConfigDef("logging.format", STRING, _TELEMETRY.log_format,
        "How log lines are written to stderr: `text` for people, `json` for machines.", OneOf(LOG_FORMATS)),
    ConfigDef("tracing.enabled", BOOLEAN, _TELEMETRY.tracing,
        "Whether requests over HTTP and gRPC are traced with OpenTelemetry; needs `headrace[otel]`. Where traces go is "
        "told by OpenTelemetry's own variables, e.g. OTEL_EXPORTER_OTLP_ENDPOINT."),
)
# fmt: on

NODE_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config for config in (*_OWN, *_CLUSTER_ROWS, *_ETCD_ROWS, *_GATEWAY_ROWS, *_TELEMETRY_ROWS)
}
CLUSTER_KEYS = frozenset(config.name for config in _CLUSTER_ROWS)
ETCD_KEYS = frozenset(config.name for config in _ETCD_ROWS)
GATEWAY_KEYS = frozenset(config.name for config in _GATEWAY_ROWS)


class Alias(NamedTuple):
    """Another name of a key; its value counts in `unit` of the key's, or needs `prefix` to be one."""

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

# Keys that say the same thing in different units; the first that is set wins, as in Kafka.
SAME_MEANING: tuple[tuple[str, ...], ...] = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)

# Kafka's names that mean nothing here, by their beginning, and why.
_KAFKA_ONLY = (
    ("process.roles", "every headrace node is broker and controller"),
    ("controller.", "headrace has no separate controllers; leave it out"),
    ("zookeeper.", "headrace needs no ZooKeeper; leave it out"),
    ("metadata.", "headrace keeps cluster facts in its own store; leave it out"),
    ("num.network.threads", "a node runs on one event loop; leave it out"),
    ("num.io.threads", "a node runs on one event loop; leave it out"),
    ("background.threads", "a node runs on one event loop; leave it out"),
    ("remote.log.", "headrace does not tier to remote storage yet"),
    ("ssl.", "this version speaks PLAINTEXT only"),
    ("sasl.", "this version speaks PLAINTEXT only"),
    ("security.", "this version speaks PLAINTEXT only"),
    ("authorizer.", "this version allows every request"),
    ("metric", "headrace has no JVM metrics reporters; leave it out"),
    ("kafka.metrics.", "headrace has no JVM metrics reporters; leave it out"),
    ("group.streams.", "headrace does not coordinate streams groups; leave it out"),
)


def find_config(name: str) -> tuple[ConfigDef, Alias]:
    """The key that `name` means, with how its value converts; InvalidConfig tells the nearest right name."""
    alias = ALIASES.get(name) or Alias(name)
    definition = BROKER_CONFIGS.get(alias.key) or NODE_CONFIGS.get(alias.key)
    if definition is not None:
        return definition, alias
    raise _unknown(name)


def known_names() -> list[str]:
    """Every name that a config file, the environment or a flag may use."""
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
