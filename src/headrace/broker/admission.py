"""What a produced batch must be before it may enter a partition, and what the topic makes of it.

Headers only, as a rule: records are looked into where the topic's configuration demands it (keys on a compacted
topic, another codec, a limit on old timestamps).
"""

from typing import NamedTuple

from headrace.model.configs import LogConfig
from headrace.model.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from headrace.records.batch import TIMESTAMP_TYPE_FLAG, BatchHeader, parse_header, produced_batch

NO_LIMIT_MS = 2**63 - 1
CODEC_OF = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Admitted(NamedTuple):
    batch: memoryview
    header: BatchHeader
    append_time_ms: int  # -1 where the producer's own time stands


def admit(records: memoryview, config: LogConfig, now_ms: int) -> Admitted:
    """The batch as it will be written; raises what is wrong with it."""
    header = produced_batch(records)
    if len(records) > config.max_message_bytes:
        raise _too_large(records, config)
    if config.compacts:
        _check_keys(records, header)
    append_time_ms = -1
    wanted_codec = CODEC_OF.get(config.compression_type, header.codec)
    if wanted_codec != header.codec:
        from headrace.records.builder import recompress

        records = memoryview(bytearray(recompress(records, header, wanted_codec)))
        if len(records) > config.max_message_bytes:
            raise _too_large(records, config)
        header = parse_header(records)
    if config.timestamp_type == "LogAppendTime":
        from headrace.records.builder import with_log_append_time

        with_log_append_time(records, now_ms)
        header, append_time_ms = parse_header(records), now_ms
    else:
        _check_time(records, header, config, now_ms)
    return Admitted(records, header, append_time_ms)


def _too_large(records: memoryview, config: LogConfig) -> MessageTooLarge:
    return MessageTooLarge(
        f"a batch of {len(records)} bytes; the topic takes {config.max_message_bytes} (max.message.bytes)"
    )


def _check_keys(records: memoryview, header: BatchHeader) -> None:
    from headrace.records.lookup import key_errors

    errors = key_errors(records, header)
    if errors:
        raise InvalidRecord("records of a compacted topic need a key", errors)


def _check_time(records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        # Readers would take the time of the batch for that of each record, and whatever the producer put there.
        raise InvalidTimestamp("only the broker says that timestamps are its own (LogAppendTime)")
    if header.max_timestamp - now_ms > config.timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {header.max_timestamp} is more than {config.timestamp_after_max_ms} ms ahead of the broker"
        )
    if config.timestamp_before_max_ms >= NO_LIMIT_MS:
        return
    from headrace.records.lookup import older_than

    late = tuple(
        (number, f"timestamp {timestamp} is more than {config.timestamp_before_max_ms} ms old")
        for number, timestamp in older_than(records, header, now_ms - config.timestamp_before_max_ms)
    )
    if late:
        raise InvalidTimestamp("records are older than message.timestamp.before.max.ms allows", late)
