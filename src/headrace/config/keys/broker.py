"""Broker config keys: identity, listeners, limits, replication; also includes the other broker tables.

Import the tables from `config/values.py`.
"""

from collections.abc import Mapping

from headrace.config.definition import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigDef,
    OneOf,
    Range,
    broker_config,
)
from headrace.config.keys.broker_coordinator import COORDINATOR_CONFIGS
from headrace.config.keys.broker_log import LOG_CONFIGS
from headrace.config.keys.topic import MIB

DEFAULT_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"

# Kafka's names of its two selectors. They are plain values: no class is loaded by name.
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

# fmt: off
_IDENTITY_AND_NETWORK = (
    broker_config("advertised.listeners", LIST, None,
        doc="Addresses that clients connect to, NAME://host:port, where they differ from listeners."),
    broker_config("auto.create.topics.enable", BOOLEAN, True,
        doc="Create a topic when a client that allows it requests metadata of a topic that does not exist."),
    broker_config("broker.id", INT, 1, Range(0),
        doc="Kafka's earlier name of node.id."),
    broker_config("broker.rack", STRING, None,
        doc="Rack of this node. Replicas of a partition are spread over racks, by default over hosts."),
    broker_config("connections.max.idle.ms", LONG, 600_000,
        doc="Close a connection without requests after this time; negative: never."),
    broker_config("default.replication.factor", INT, 1, Range(1),
        doc="Replication factor of topics that are created without one (also: default_replication_factor)."),
    broker_config("delete.topic.enable", BOOLEAN, True,
        doc="Allow topics to be deleted."),
    broker_config("fetch.max.bytes", INT, 55 * MIB, Range(1024),
        doc="Maximum bytes of one Fetch response, regardless of the request; a single larger batch is returned "
            "whole."),
    broker_config("inter.broker.listener.name", STRING, None,
        doc="The listener that brokers use between themselves. Unset: the first."),
    broker_config("listener.security.protocol.map", STRING, DEFAULT_PROTOCOL_MAP,
        doc="Security protocol of each listener name: NAME:PROTOCOL pairs. This version supports PLAINTEXT."),
    broker_config("listeners", LIST, ("PLAINTEXT://localhost:9092",),
        doc="Addresses to listen on, NAME://host:port (also: api_addr). IPv6 in brackets; no host: every interface; "
            "port 0: any free one. The default accepts connections from this host only."),
    broker_config("max.connection.creation.rate", INT, INT_MAX, Range(0), dynamic=True,
        doc="Maximum new connections per second; more of them wait."),
    broker_config("max.connections", INT, INT_MAX, Range(0), dynamic=True,
        doc="Maximum number of client connections; further ones are closed. Connections between brokers do not count "
            "if inter.broker.listener.name names a listener of their own, else 64 from the address of each broker."),
    broker_config("max.connections.per.ip", INT, INT_MAX, Range(0), dynamic=True,
        doc="Maximum number of client connections from one address; further ones are closed. Connections between "
            "brokers are treated as in max.connections."),
    broker_config("max.connections.per.ip.overrides", STRING, "", dynamic=True,
        doc="Exceptions to max.connections.per.ip: address:number pairs."),
    broker_config("max.incremental.fetch.session.cache.slots", INT, 1000, Range(0),
        doc="Maximum number of fetch sessions. A client without a session sends its whole list of partitions with "
            "every request."),
    broker_config("max.request.partition.size.limit", INT, 2000, Range(1),
        doc="Maximum partitions in one DescribeTopicPartitions response."),
    broker_config("node.id", INT, 1, Range(0), synonyms=("broker.id",),
        doc="Number of this node, unique in its cluster (also: node_id)."),
    broker_config("num.partitions", INT, 4, Range(1),
        doc="Partitions of topics that are created without a number (also: default_partitions). Kafka's default is "
            "1."),
    broker_config("queued.max.request.bytes", LONG, 256 * MIB, Range(1, also=-1),
        doc="Maximum bytes of requests in memory. Beyond it, sockets are not read until requests have been "
            "completed. -1 sets no limit, as is Kafka's default."),
    broker_config("queued.max.requests", INT, 500, Range(1),
        doc="Maximum requests of one connection in progress before its socket is not read."),
    broker_config("quota.window.num", INT, 11, Range(1),
        doc="Samples kept to measure a client's rate against its quota."),
    broker_config("quota.window.size.seconds", INT, 1, Range(1),
        doc="Length of one sample of a client's rate."),
    broker_config("request.timeout.ms", INT, 30_000, Range(1),
        doc="How long this node, or its gateway, waits as a client for a response (also: request_timeout_ms)."),
    broker_config("socket.connection.setup.timeout.max.ms", LONG, 30_000, Range(1),
        doc="Maximum to which the connection timeout between brokers grows."),
    broker_config("socket.connection.setup.timeout.ms", LONG, 10_000, Range(1),
        doc="Connection timeout between brokers."),
    broker_config("socket.listen.backlog.size", INT, 50, Range(1),
        doc="Maximum connections that wait in the kernel to be accepted."),
    broker_config("socket.receive.buffer.bytes", INT, 102_400, Range(-1),
        doc="Receive buffer of a connection (SO_RCVBUF); -1: the kernel's default."),
    broker_config("socket.request.max.bytes", INT, 100 * MIB, Range(1),
        doc="Maximum size of a request. The connection of a larger one is closed: the limit bounds the memory that "
            "one client can use."),
    broker_config("socket.send.buffer.bytes", INT, 262_144, Range(-1),
        doc="Send buffer of a connection (SO_SNDBUF). With a small buffer, a client on the same host reads the "
            "response from the processor's cache. Use -1, the kernel's default, for clients with a long round trip "
            "time."),
)

CLUSTER_CONFIGS: tuple[ConfigDef, ...] = (
    broker_config("auto.leader.rebalance.enable", BOOLEAN, True,
        doc="Return leadership to the preferred leader of a partition once it is in sync."),
    broker_config("broker.clock.skew.max.ms", LONG, 300_000, Range(0),
        doc="A node whose clock differs from the other nodes' by more than this does not join the cluster, because "
            "retention and timeouts depend on each leader's clock. headrace's own key."),
    broker_config("broker.heartbeat.interval.ms", INT, 2000, Range(1),
        doc="How often a node renews its session."),
    broker_config("broker.session.timeout.ms", INT, 2000, Range(1),
        doc="A broker whose session was not renewed for this long is fenced, and other brokers are elected as "
            "leaders. Apache Kafka's default is 9000."),
    broker_config("controlled.shutdown.enable", BOOLEAN, True,
        doc="Hand over leadership before the broker stops."),
    broker_config("follower.replication.throttled.rate", LONG, LONG_MAX, Range(0), dynamic=True,
        doc="Maximum bytes per second that throttled followers fetch."),
    broker_config("leader.imbalance.check.interval.seconds", LONG, 300, Range(1),
        doc="How often partitions are checked for leaders that are not the preferred one."),
    broker_config("leader.replication.throttled.rate", LONG, LONG_MAX, Range(0), dynamic=True,
        doc="Maximum bytes per second that a leader sends to throttled followers."),
    broker_config("num.replica.fetchers", INT, 1, Range(1), dynamic=True,
        doc="Connections over which a broker replicates from each leader."),
    broker_config("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, Range(0), dynamic=True,
        doc="Maximum bytes per second at which replicas move between log directories; a node has one, so none move."),
    broker_config("replica.fetch.backoff.ms", INT, 1000, Range(0),
        doc="Pause after a failed fetch from a leader."),
    broker_config("replica.fetch.max.bytes", INT, MIB, Range(0),
        doc="Bytes that a follower fetches from one partition at a time; a single larger batch is fetched whole. A "
            "follower that is far behind uses up to 4 MiB."),
    broker_config("replica.fetch.min.bytes", INT, 1, Range(0),
        doc="Minimum bytes of a leader's response to a replica fetch."),
    broker_config("replica.fetch.response.max.bytes", INT, 10 * MIB, Range(0),
        doc="Maximum bytes of one replica fetch response, over all partitions."),
    broker_config("replica.fetch.wait.max.ms", INT, 500, Range(0),
        doc="Maximum time until a leader responds to a replica fetch."),
    broker_config("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, Range(1),
        doc="How often high watermarks are written to the checkpoint file."),
    broker_config("replica.lag.time.max.ms", LONG, 30_000, Range(1),
        doc="A follower that has not caught up for this long is removed from the ISR."),
    broker_config("replica.selector.class", STRING, LEADER_SELECTOR, OneOf((LEADER_SELECTOR, RACK_SELECTOR)),
        doc="Which replica consumers fetch from: the leader, or an in-sync replica in their own rack (`client.rack`, "
            "`broker.rack`)."),
    broker_config("replica.socket.receive.buffer.bytes", INT, 65_536, Range(-1),
        doc="Receive buffer of a replication connection."),
    broker_config("replica.socket.timeout.ms", INT, 30_000, Range(1),
        doc="How long a follower waits for a response of a leader."),
    broker_config("replication.quota.window.num", INT, 11, Range(1),
        doc="Samples kept to measure replication against its throttled rate."),
    broker_config("replication.quota.window.size.seconds", INT, 1, Range(1),
        doc="Length of one sample of the replication rate."),
)
# fmt: on

_ALL = (*_IDENTITY_AND_NETWORK, *CLUSTER_CONFIGS, *LOG_CONFIGS, *COORDINATOR_CONFIGS)

BROKER_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config for config in sorted(_ALL, key=lambda config: config.name)
}
