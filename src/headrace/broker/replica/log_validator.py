"""Validates produced batches before they are appended, and applies the topic's configuration to them.

Usually only headers are checked. Records are decoded if the topic's configuration requires it: keys on a compacted
topic, another codec, or a limit on old timestamps. For a large batch that takes many milliseconds, so callers on the
event loop check `needs_thread` first and validate such a batch in a thread.
"""

from typing import NamedTuple

from headrace.config.values import LogConfig
from headrace.model.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from headrace.records.batch import CODEC_MASK, TIMESTAMP_TYPE_FLAG, BatchHeader, parse_header, produced_batch

NO_LIMIT_MS = 2**63 - 1
# This many bytes of the smallest records are validated within 2 ms.
LOOKED_INTO_ON_LOOP_BYTES_MAX = 16 * 1024
_ATTRIBUTES_LOW_BYTE_AT = 22
CODEC_OF = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class ValidatedBatch(NamedTuple):
    batch: memoryview
    header: BatchHeader
    append_time_ms: int  # -1 if the producer's timestamps are kept


def codec_of(records: memoryview) -> int:
    return records[_ATTRIBUTES_LOW_BYTE_AT] & CODEC_MASK if len(records) > _ATTRIBUTES_LOW_BYTE_AT else 0


def needs_thread(records: memoryview, config: LogConfig) -> bool:
    """Returns whether validation may decode many records. A compressed batch may hold any number of them."""
    return config.looks_into_records and (
        len(records) > LOOKED_INTO_ON_LOOP_BYTES_MAX or codec_of(records) != CODEC_OF["uncompressed"]
    )


def admit(records: memoryview, config: LogConfig, now_ms: int) -> ValidatedBatch:
    """Returns the batch as it will be written. Raises the validation error."""
    header = produced_batch(records)
    if len(records) > config.max_message_bytes:
        raise _too_large(records, config)
    if config.takes_batches_as_they_are:
        _check_time(records, header, config, now_ms)
        return ValidatedBatch(records, header, -1)
    if config.compacts:
        _check_keys(records, header)
    append_time_ms = -1
    wanted_codec = CODEC_OF.get(config.compression_type, header.codec)
    if wanted_codec != header.codec:
        from headrace.records.builder import recompress

        level = _level_of(wanted_codec, config)
        records = memoryview(bytearray(recompress(records, header, wanted_codec, level)))
        if len(records) > config.max_message_bytes:
            raise _too_large(records, config)
        header = parse_header(records)
    if config.timestamp_type == "LogAppendTime":
        from headrace.records.builder import with_log_append_time

        with_log_append_time(records, now_ms)
        header, append_time_ms = parse_header(records), now_ms
    else:
        _check_time(records, header, config, now_ms)
    return ValidatedBatch(records, header, append_time_ms)


def _level_of(codec: int, config: LogConfig) -> int | None:
    levels = (None, config.compression_gzip_level, None, config.compression_lz4_level, config.compression_zstd_level)
    return levels[codec]


def _too_large(records: memoryview, config: LogConfig) -> MessageTooLarge:
    return MessageTooLarge(
        f"a batch of {len(records)} bytes; the topic takes {config.max_message_bytes} (max.message.bytes)"
    )


def _check_keys(records: memoryview, header: BatchHeader) -> None:
    from headrace.records.batch_queries import key_errors

    errors = key_errors(records, header)
    if errors:
        raise InvalidRecord("records of a compacted topic need a key", errors)


def _check_time(records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        # Consumers would use the batch's timestamp, which the producer chose, for each of its records.
        raise InvalidTimestamp("a producer must not set LogAppendTime")
    if header.max_timestamp - now_ms > config.timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {header.max_timestamp} is more than {config.timestamp_after_max_ms} ms ahead of the broker"
        )
    if config.timestamp_before_max_ms >= NO_LIMIT_MS:
        return
    from headrace.records.batch_queries import older_than

    late = tuple(
        (number, f"timestamp {timestamp} is more than {config.timestamp_before_max_ms} ms old")
        for number, timestamp in older_than(records, header, now_ms - config.timestamp_before_max_ms)
    )
    if late:
        raise InvalidTimestamp("records are older than message.timestamp.before.max.ms allows", late)
