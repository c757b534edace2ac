"""The broker's keys: who it is, where it listens, what it accepts, how it replicates; and the other tables.

A table and nothing else; `configs.py` is the door to it.
"""

from collections.abc import Mapping

from headrace.model.broker_coordinator_configs import COORDINATOR_CONFIGS
from headrace.model.broker_log_configs import LOG_CONFIGS
from headrace.model.config_def import (
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
from headrace.model.topic_configs import MIB

DEFAULT_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"

# Kafka's names for its two selectors. They are words here, not classes: nothing is loaded by name.
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

# fmt: off
_IDENTITY_AND_NETWORK = (
    broker_config("advertised.listeners", LIST, None,
        doc="Addresses that clients are told to use, NAME://host:port, when they differ from listeners."),
    broker_config("auto.create.topics.enable", BOOLEAN, True,
        doc="Create a topic when a client that allows it asks about one that does not exist."),
    broker_config("broker.id", INT, 1, Range(0),
        doc="Kafka's older name of node.id."),
    broker_config("broker.rack", STRING, None,
        doc="Where this node stands; replicas of a partition are spread over racks, by default over machines."),
    broker_config("connections.max.idle.ms", LONG, 600_000,
        doc="Close a connection that has been silent for this long; negative: never."),
    broker_config("default.replication.factor", INT, 1, Range(1),
        doc="Replicas of a topic whose creator did not say (also: default_replication_factor)."),
    broker_config("delete.topic.enable", BOOLEAN, True,
        doc="Allow topics to be deleted."),
    broker_config("fetch.max.bytes", INT, 55 * MIB, Range(1024),
        doc="The most one Fetch returns, whatever it asks for; a single larger batch still comes whole."),
    broker_config("inter.broker.listener.name", STRING, None,
        doc="The listener that brokers use among themselves; unset means the first."),
    broker_config("listener.security.protocol.map", STRING, DEFAULT_PROTOCOL_MAP,
        doc="Which protocol each listener name speaks: NAME:PROTOCOL pairs. This version speaks PLAINTEXT."),
    broker_config("listeners", LIST, ("PLAINTEXT://localhost:9092",),
        doc="Addresses to listen on, NAME://host:port (also: api_addr). IPv6 in brackets; no host: every "
            "interface; port 0: any free one. The default is reachable from this machine only."),
    broker_config("max.connection.creation.rate", INT, INT_MAX, Range(0), dynamic=True,
        doc="Most new connections a second; more of them wait."),
    broker_config("max.connections", INT, INT_MAX, Range(0), dynamic=True,
        doc="Most connections of clients at a time; one more is closed at once. Connections between brokers do not "
            "count if inter.broker.listener.name names a listener of their own, else 64 from the address of each."),
    broker_config("max.connections.per.ip", INT, INT_MAX, Range(0), dynamic=True,
        doc="Most connections of clients at a time from one address; one more is closed at once. Connections between "
            "brokers are treated as in max.connections."),
    broker_config("max.connections.per.ip.overrides", STRING, "", dynamic=True,
        doc="Exceptions to max.connections.per.ip: address:number pairs."),
    broker_config("max.incremental.fetch.session.cache.slots", INT, 1000, Range(0),
        doc="Most fetch sessions that are remembered; without a slot a client repeats its whole list."),
    broker_config("max.request.partition.size.limit", INT, 2000, Range(1),
        doc="Most partitions in one answer of DescribeTopicPartitions."),
    broker_config("node.id", INT, 1, Range(0), synonyms=("broker.id",),
        doc="This node's number, unique in its cluster (also: node_id)."),
    broker_config("num.partitions", INT, 4, Range(1),
        doc="Partitions of a topic whose creator did not say (also: default_partitions). Kafka's is 1."),
    broker_config("queued.max.request.bytes", LONG, 256 * MIB, Range(1, also=-1),
        doc="Bytes of requests that are held in memory at a time; when they are used up, sockets are read no "
            "further until some are answered. -1 sets no limit, as is Kafka's default."),
    broker_config("queued.max.requests", INT, 500, Range(1),
        doc="Requests of one connection that are worked on before its socket is read no further."),
    broker_config("quota.window.num", INT, 11, Range(1),
        doc="Samples kept to measure a client's rate against its quota."),
    broker_config("quota.window.size.seconds", INT, 1, Range(1),
        doc="Length of such a sample."),
    broker_config("request.timeout.ms", INT, 30_000, Range(1),
        doc="How long this node, or its gateway, as a client waits for an answer (also: request_timeout_ms)."),
    broker_config("socket.connection.setup.timeout.max.ms", LONG, 30_000, Range(1),
        doc="Upper limit to which the wait for a connection to another node grows."),
    broker_config("socket.connection.setup.timeout.ms", LONG, 10_000, Range(1),
        doc="How long to wait for a connection to another node."),
    broker_config("socket.listen.backlog.size", INT, 50, Range(1),
        doc="Connections that the kernel holds until they are accepted."),
    broker_config("socket.receive.buffer.bytes", INT, 102_400, Range(-1),
        doc="The kernel's receive buffer of a connection; -1 leaves it to the kernel."),
    broker_config("socket.request.max.bytes", INT, 100 * MIB, Range(1),
        doc="The largest request; a larger one closes the connection, since it bounds what one stranger can "
            "make the broker hold."),
    broker_config("socket.send.buffer.bytes", INT, 262_144, Range(-1),
        doc="The kernel's send buffer of a connection: what of an answer may be on its way. A client that reads while "
            "the rest is written finds it in the processor's cache; over long distances -1, which leaves it to the "
            "kernel, lets more be on its way."),
)

CLUSTER_CONFIGS: tuple[ConfigDef, ...] = (
    broker_config("auto.leader.rebalance.enable", BOOLEAN, True,
        doc="Move leadership back to the first replica of a partition once it is in sync again."),
    broker_config("broker.clock.skew.max.ms", LONG, 300_000, Range(0),
        doc="A node whose clock is further than this from the other nodes' does not join them: retention and timeouts "
            "go by each leader's clock. headrace's own key."),
    broker_config("broker.heartbeat.interval.ms", INT, 2000, Range(1),
        doc="How often a node renews its place in the cluster."),
    broker_config("broker.session.timeout.ms", INT, 2000, Range(1),
        doc="A node that has not renewed its place for this long is considered gone, and others lead in its stead. "
            "Apache Kafka waits 9000."),
    broker_config("controlled.shutdown.enable", BOOLEAN, True,
        doc="Hand leadership over before stopping."),
    broker_config("follower.replication.throttled.rate", LONG, LONG_MAX, Range(0), dynamic=True,
        doc="Bytes a second at which throttled followers catch up."),
    broker_config("leader.imbalance.check.interval.seconds", LONG, 300, Range(1),
        doc="How often the spread of leaders is looked at."),
    broker_config("leader.replication.throttled.rate", LONG, LONG_MAX, Range(0), dynamic=True,
        doc="Bytes a second that a leader sends to throttled followers."),
    broker_config("num.replica.fetchers", INT, 1, Range(1), dynamic=True,
        doc="Connections over which a node copies from another one."),
    broker_config("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, Range(0), dynamic=True,
        doc="Bytes a second at which replicas move between directories of a node; it has one, so none do."),
    broker_config("replica.fetch.backoff.ms", INT, 1000, Range(0),
        doc="Rest after a failed copy from a leader."),
    broker_config("replica.fetch.max.bytes", INT, MIB, Range(0),
        doc="Bytes copied from a partition at a time; a single larger batch still comes whole."),
    broker_config("replica.fetch.min.bytes", INT, 1, Range(0),
        doc="A leader answers a follower once it has this much."),
    broker_config("replica.fetch.response.max.bytes", INT, 10 * MIB, Range(0),
        doc="Bytes copied from a leader at a time, over all partitions."),
    broker_config("replica.fetch.wait.max.ms", INT, 500, Range(0),
        doc="A leader answers a follower at the latest after this time."),
    broker_config("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, Range(1),
        doc="How often high watermarks are written down."),
    broker_config("replica.lag.time.max.ms", LONG, 30_000, Range(1),
        doc="A follower that has not caught up for this long leaves the in-sync set."),
    broker_config("replica.selector.class", STRING, LEADER_SELECTOR, OneOf((LEADER_SELECTOR, RACK_SELECTOR)),
        doc="Which replica consumers are sent to: the leader, or one in their own rack (`client.rack`, `broker.rack`) "
            "that is in sync."),
    broker_config("replica.socket.receive.buffer.bytes", INT, 65_536, Range(-1),
        doc="The kernel's receive buffer of a copying connection."),
    broker_config("replica.socket.timeout.ms", INT, 30_000, Range(1),
        doc="How long a follower waits for a leader's answer."),
    broker_config("replication.quota.window.num", INT, 11, Range(1),
        doc="Samples kept to measure replication against its throttled rate."),
    broker_config("replication.quota.window.size.seconds", INT, 1, Range(1),
        doc="Length of such a sample."),
)
# fmt: on

_ALL = (*_IDENTITY_AND_NETWORK, *CLUSTER_CONFIGS, *LOG_CONFIGS, *COORDINATOR_CONFIGS)

BROKER_CONFIGS: Mapping[str, ConfigDef] = {
    config.name: config for config in sorted(_ALL, key=lambda config: config.name)
}
