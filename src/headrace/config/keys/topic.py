"""Topic config keys: Kafka 4.3's with their defaults and limits, and headrace's own: archive.* and flush.policy.

Import the tables from `config/values.py`.
"""

from collections.abc import Mapping

from headrace.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Check,
    ConfigDef,
    ConfigType,
    ConfigValue,
    OneOf,
    PartitionOffsets,
    Range,
    ReplicaPairs,
    TableName,
)

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS
MIB = 1024 * 1024

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = ("compact", "delete")
FLUSH_POLICIES = ("fsync", "replicated")
MESSAGE_BYTES_MAX = MIB + 12  # a batch of one MiB, and its base offset and length fields
LAKE_KINDS = ("delta", "iceberg")
# with smaller segments, a file for a few batches each, the broker runs out of file descriptors first
SEGMENT_BYTES_MIN = MIB

_NOT_TIERED = "headrace does not tier to remote storage yet"


def _topic(
    name: str,
    type_: ConfigType,
    default: ConfigValue | None,
    check: Check | None,
    *,
    doc: str,
    synonyms: tuple[str, ...] = (),
    internal: bool = False,
) -> ConfigDef:
    return ConfigDef(name, type_, default, doc, check, synonyms, dynamic=True, internal=internal)


# fmt: off
_ALL = (
    _topic("archive.before.delete", BOOLEAN, False, None,
        doc="Retention and compaction keep records that are not in the topic's archive yet. Without a running "
            "archiver the log grows without limit. This key is headrace's own."),
    _topic("archive.schema", STRING, "", None,
        doc="Columns of the archive, as `headrace archive enable` writes them: `json:` and the columns with their "
            "types. This key is headrace's own."),
    _topic("archive.table", STRING, "", TableName(LAKE_KINDS),
        doc="The table that `headrace archive run` maintains for this topic; empty: none. This key is headrace's "
            "own."),
    _topic("archive.until", LIST, (), PartitionOffsets(),
        doc="Offsets up to which each partition is archived, as partition:offset. The archiver writes them some "
            "minutes after its commits, so that running queries find the records that they planned to read. This key "
            "is headrace's own."),
    _topic("cleanup.policy", LIST, ("delete",), OneOf(CLEANUP_POLICIES), synonyms=("log.cleanup.policy",),
        doc="What happens to old records. `delete` removes segments beyond retention.ms or retention.bytes; "
            "`compact` keeps the newest record of each key; `compact,delete` does both; empty keeps everything."),
    _topic("compression.gzip.level", INT, -1, Range(1, 9, also=-1), synonyms=("compression.gzip.level",),
        doc="Compression level if compression.type is gzip; -1: the library's default."),
    _topic("compression.lz4.level", INT, 9, Range(1, 17), synonyms=("compression.lz4.level",),
        doc="Compression level if compression.type is lz4."),
    _topic("compression.type", STRING, "producer", OneOf(COMPRESSION_TYPES), synonyms=("compression.type",),
        doc="Codec of batches on disk. `producer` keeps the producer's codec, without work for the broker; with any "
            "other value the broker recompresses batches of another codec."),
    _topic("compression.zstd.level", INT, 3, Range(-131072, 22), synonyms=("compression.zstd.level",),
        doc="Compression level if compression.type is zstd."),
    _topic("delete.retention.ms", LONG, DAY_MS, Range(0), synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long compaction keeps a tombstone (a record without a value), so that a consumer that reads from "
            "the beginning sees the deletion."),
    _topic("file.delete.delay.ms", LONG, 60_000, Range(0), synonyms=("log.segment.delete.delay.ms",),
        doc="How long a segment that was removed from its log stays on disk, renamed to .deleted, so that reads in "
            "flight complete."),
    _topic("flush.messages", LONG, LONG_MAX, Range(1), synonyms=("log.flush.interval.messages",),
        doc="Sync the log after this many records. It has an effect with flush.policy=replicated only: the default "
            "policy syncs before every acknowledgement."),
    _topic("flush.ms", LONG, LONG_MAX, Range(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="Sync the log at least this often. It has an effect with flush.policy=replicated only."),
    _topic("flush.policy", STRING, "fsync", OneOf(FLUSH_POLICIES), synonyms=("log.flush.policy",),
        doc="When acks=all is acknowledged. `fsync`: when every in-sync replica has the batch on disk (one sync "
            "serves all batches that arrived since the last). `replicated`: when every in-sync replica has it in the "
            "page cache, as in Kafka. This key is headrace's own."),
    _topic("follower.replication.throttled.replicas", LIST, (), ReplicaPairs(),
        doc="Replicas whose fetches are limited to follower.replication.throttled.rate: partition:broker pairs, or * "
            "for all."),
    _topic("index.interval.bytes", INT, 4096, Range(0), synonyms=("log.index.interval.bytes",),
        doc="Bytes of log between two entries of the offset index. Fewer bytes mean a larger index and shorter "
            "searches."),
    _topic("internal.segment.bytes", INT, None, Range(1), internal=True,
        doc="For tests: a segment size without the minimum of segment.bytes. It overrides segment.bytes."),
    _topic("leader.replication.throttled.replicas", LIST, (), ReplicaPairs(),
        doc="Replicas to which the leader sends at most leader.replication.throttled.rate: partition:broker pairs, "
            "or * for all."),
    _topic("local.retention.bytes", LONG, -2, Range(-2), synonyms=("log.local.retention.bytes",),
        doc=f"Bytes of a tiered partition that stay on local disk; -2 means retention.bytes. {_NOT_TIERED}."),
    _topic("local.retention.ms", LONG, -2, Range(-2), synonyms=("log.local.retention.ms",),
        doc=f"How long tiered segments stay on local disk; -2 means retention.ms. {_NOT_TIERED}."),
    _topic("max.compaction.lag.ms", LONG, LONG_MAX, Range(1), synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="A record is compacted at most this long after it was written, regardless of the dirty ratio."),
    _topic("max.message.bytes", INT, MESSAGE_BYTES_MAX, Range(0), synonyms=("message.max.bytes",),
        doc="Maximum size of a record batch, in bytes as sent (after compression)."),
    _topic("message.timestamp.after.max.ms", LONG, 3_600_000, Range(0),
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far a record's timestamp may be after the broker's time; records beyond it are rejected. It has no "
            "effect if message.timestamp.type is LogAppendTime."),
    _topic("message.timestamp.before.max.ms", LONG, LONG_MAX, Range(0),
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far a record's timestamp may be before the broker's time; records beyond it are rejected. It has no "
            "effect if message.timestamp.type is LogAppendTime."),
    _topic("message.timestamp.type", STRING, "CreateTime", OneOf(TIMESTAMP_TYPES),
        synonyms=("log.message.timestamp.type",),
        doc="Whether a record has the producer's timestamp (CreateTime) or the broker's at the append "
            "(LogAppendTime)."),
    _topic("min.cleanable.dirty.ratio", DOUBLE, 0.5, Range(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="Compact a log once this share of it is dirty. A lower ratio compacts more often and wastes less space."),
    _topic("min.compaction.lag.ms", LONG, 0, Range(0), synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="A record is not compacted for at least this long, so that consumers can read every version for a while."),
    _topic("min.insync.replicas", INT, 1, Range(1), synonyms=("min.insync.replicas",),
        doc="acks=all is rejected while the ISR has fewer replicas than this."),
    _topic("preallocate", BOOLEAN, False, None, synonyms=("log.preallocate",),
        doc="Accepted for Kafka's tools. headrace preallocates the tail of segments by itself where syncs become "
            "faster, and no whole segments."),
    _topic("remote.log.copy.disable", BOOLEAN, False, None,
        doc=f"Stop copying segments to remote storage and serve what is there. {_NOT_TIERED}."),
    _topic("remote.log.delete.on.disable", BOOLEAN, False, None,
        doc=f"Delete remote segments when remote.storage.enable is switched off. {_NOT_TIERED}."),
    _topic("remote.storage.enable", BOOLEAN, False, None,
        doc=f"Copy inactive segments to remote storage. {_NOT_TIERED}: true is rejected."),
    _topic("retention.bytes", LONG, -1, None, synonyms=("log.retention.bytes",),
        doc="Delete the oldest segments of a partition while it is larger than this; -1 sets no limit. The limit is "
            "per partition."),
    _topic("retention.ms", LONG, WEEK_MS, Range(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="Delete segments whose newest record is older than this; -1 keeps them forever."),
    _topic("segment.bytes", INT, 1024 * MIB, Range(SEGMENT_BYTES_MIN), synonyms=("log.segment.bytes",),
        doc="Roll a segment at this size. Retention and compaction work on inactive segments."),
    _topic("segment.index.bytes", INT, 10 * MIB, Range(4), synonyms=("log.index.size.max.bytes",),
        doc="Maximum size of a segment's offset index; a full index rolls the segment."),
    _topic("segment.jitter.ms", LONG, 0, Range(0), synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="Maximum random time by which segments are rolled before segment.ms, so that many partitions do not roll "
            "at the same moment."),
    _topic("segment.ms", LONG, WEEK_MS, Range(1), synonyms=("log.roll.ms", "log.roll.hours"),
        doc="Roll a segment after this time even if it is not full, so that retention and compaction can remove its "
            "records."),
    _topic("unclean.leader.election.enable", BOOLEAN, False, None,
        synonyms=("unclean.leader.election.enable",),
        doc="Elect a replica that is not in sync if no other is available. Committed records that it does not have "
            "are lost."),
)
# fmt: on

TOPIC_CONFIGS: Mapping[str, ConfigDef] = {config.name: config for config in _ALL}
