"""Access to all config keys, and the effective configs of one partition's log.

Resolves precedence (topic, broker, default) and rejects contradictory values. Pure; performs no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from headrace.config.definition import LONG_MAX, ConfigDef, ConfigType, ConfigValue, OneOf, Range, nearest, render
from headrace.config.keys.broker import BROKER_CONFIGS
from headrace.config.keys.topic import DAY_MS, MESSAGE_BYTES_MAX, MIB, TOPIC_CONFIGS, WEEK_MS
from headrace.model.errors import InvalidConfig

__all__ = [
    "BROKER_CONFIGS",
    "SYNONYM_UNIT_MS",
    "TOPIC_CONFIGS",
    "ConfigDef",
    "ConfigType",
    "ConfigValue",
    "LogConfig",
    "OneOf",
    "Range",
    "broker_value_for_topic",
    "check_topic_configs",
    "log_config",
    "nearest",
    "render",
    "topic_config_value",
    "unknown_config",
]

# Broker configs in another unit than the topic config that they are a default of.
SYNONYM_UNIT_MS: Mapping[str, int] = {
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
    "log.roll.hours": 3_600_000,
    "log.roll.jitter.hours": 3_600_000,
}
_RETENTION_TIMES = frozenset({"log.retention.ms", "log.retention.minutes", "log.retention.hours"})


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Typed effective configs of one log. Fields and defaults are Kafka's.

    Properties derived from several configs are cached, since every batch uses them.
    """

    segment_bytes: int = 1024 * MIB
    segment_ms: int = WEEK_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    retention_ms: int = WEEK_MS
    retention_bytes: int = -1
    max_message_bytes: int = MESSAGE_BYTES_MAX
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    min_insync_replicas: int = 1
    flush_policy: str = "fsync"
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    unclean_leader_election: bool = False
    leader_replication_throttled_replicas: frozenset[str] = frozenset()
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    archive_before_delete: bool = False
    archive_until: frozenset[str] = frozenset()

    @cached_property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    def archived_to(self, partition: int) -> int | None:
        """Returns the offset up to which the archive has records; None without a retention hold.

        Retention does not pass this offset.
        """
        if not self.archive_before_delete:
            return None
        ends = dict(pair.split(":") for pair in self.archive_until)
        return int(ends.get(str(partition), 0))

    @cached_property
    def looks_into_records(self) -> bool:
        """Returns whether record validation needs a batch's records; otherwise the batch header is sufficient."""
        return (
            self.compression_type != "producer"
            or self.timestamp_before_max_ms < LONG_MAX
            or "compact" in self.cleanup_policy
        )

    @cached_property
    def takes_batches_as_they_are(self) -> bool:
        """Returns whether valid batches are written unchanged."""
        return not self.looks_into_records and self.timestamp_type == "CreateTime"


# LogConfig fields whose names are not the key's name with underscores.
_KEY_OF_FIELD: Mapping[str, str] = {
    "timestamp_type": "message.timestamp.type",
    "timestamp_before_max_ms": "message.timestamp.before.max.ms",
    "timestamp_after_max_ms": "message.timestamp.after.max.ms",
    "unclean_leader_election": "unclean.leader.election.enable",
}
_FIELDS: tuple[tuple[str, ConfigDef], ...] = tuple(
    (field, TOPIC_CONFIGS[_KEY_OF_FIELD.get(field, field.replace("_", "."))])
    for field in LogConfig.__dataclass_fields__
)


def log_config(topic_overrides: Mapping[str, str], broker: Mapping[str, str]) -> LogConfig:
    """Returns the configs of one log: the topic's own values, else the broker's, else the defaults.

    Both mappings have only configs that are set, as canonical text.
    """
    values: dict[str, ConfigValue] = {}
    for field, definition in _FIELDS:
        value = topic_config_value(definition, topic_overrides, broker)
        if value != definition.default and value is not None:
            values[field] = frozenset(value) if isinstance(value, tuple) else value  # type: ignore[assignment]
    if (small := topic_overrides.get("internal.segment.bytes")) is not None:
        values["segment_bytes"] = TOPIC_CONFIGS["internal.segment.bytes"].parse(small)
    return LogConfig(**values)  # type: ignore[arg-type]


def topic_config_value(
    definition: ConfigDef, topic_overrides: Mapping[str, str], broker: Mapping[str, str]
) -> ConfigValue | None:
    """Returns the effective value of a topic config; None only for an unset key without a default."""
    text = topic_overrides.get(definition.name)
    if text is not None:
        return definition.parse(text)
    for synonym in definition.synonyms:
        text = broker.get(synonym)
        if text is not None:
            return broker_value_for_topic(synonym, text)
    return definition.default


def broker_value_for_topic(synonym: str, text: str) -> ConfigValue:
    """Returns a broker config's value in the unit of the topic config that it is a default of.

    Hours become milliseconds, for example.
    """
    value = BROKER_CONFIGS[synonym].parse(text)
    if synonym in _RETENTION_TIMES and isinstance(value, int) and value < 0:
        return -1  # any negative retention time means unlimited, in every unit
    unit_ms = SYNONYM_UNIT_MS.get(synonym)
    if unit_ms is None:
        return value
    assert isinstance(value, int), "only whole numbers have a unit"
    return value * unit_ms


def check_topic_configs(topic_overrides: Mapping[str, str], broker: Mapping[str, str]) -> None:
    """Raises InvalidConfig for topic configs with an unknown key, an invalid value, or contradictory values."""
    for name, text in topic_overrides.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise unknown_config(name, TOPIC_CONFIGS, "topic")
        value = definition.parse(text)
        if name == "remote.storage.enable" and value:
            raise InvalidConfig("remote.storage.enable=true is rejected: this broker has no remote storage")
    log = log_config(topic_overrides, broker)
    if log.min_compaction_lag_ms > log.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({log.min_compaction_lag_ms}) must not be greater than "
            f"max.compaction.lag.ms ({log.max_compaction_lag_ms})"
        )


def unknown_config(name: str, known: Mapping[str, ConfigDef], kind: str) -> InvalidConfig:
    """Returns the error for an unknown key, with the most similar known one."""
    close = nearest(name, known)
    hint = f"; did you mean {close}?" if close is not None else ""
    return InvalidConfig(f"Unknown {kind} config name: {name}{hint}")
