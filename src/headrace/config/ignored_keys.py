"""Config keys that are accepted, validated and shown, but have no effect in this version.

Kafka's tools and existing config files contain them, so they are not rejected; a node's start prints a remark for
each instead. A test compares this list with the keys that the source reads, so it cannot become outdated.
"""

from collections.abc import Mapping

from headrace.config.keys.topic import TOPIC_CONFIGS

_TOPIC_KEYS = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
)
_BROKER_KEYS = frozenset(
    {
        "broker.heartbeat.interval.ms",
        "num.replica.fetchers",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "replica.fetch.backoff.ms",
        "replica.socket.receive.buffer.bytes",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.initial.task.delay.ms",
        "max.connection.creation.rate",
        "max.connections.per.ip.overrides",
        "num.recovery.threads.per.data.dir",
        "queued.max.requests",
        "quota.window.num",
        "quota.window.size.seconds",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
    }
)
_COORDINATOR_KEYS = frozenset(
    {
        "group.coordinator.append.linger.ms",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.partition.max.record.locks",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "share.coordinator.append.linger.ms",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.write.timeout.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.state.log.load.buffer.size",
        "transaction.two.phase.commit.enable",
    }
)
_BROKER_DEFAULTS_OF_TOPIC_KEYS = frozenset(synonym for key in _TOPIC_KEYS for synonym in TOPIC_CONFIGS[key].synonyms)

# What to set instead of keys that will never have an effect.
INSTEAD: Mapping[str, str] = {
    "memtx_dir": "here: all data is in one directory; set storage_path",
    "vinyl_dir": "here: all data is in one directory; set storage_path",
}
IGNORED_KEYS: frozenset[str] = frozenset(
    _TOPIC_KEYS | _BROKER_KEYS | _BROKER_DEFAULTS_OF_TOPIC_KEYS | _COORDINATOR_KEYS | INSTEAD.keys()
)
