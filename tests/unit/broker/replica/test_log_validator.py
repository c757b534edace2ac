"""What a produced batch must be before a partition takes it, and what the topic makes of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.broker.replica.log_validator import LOOKED_INTO_ON_LOOP_BYTES_MAX, admit, needs_thread
from headrace.config.values import LogConfig
from headrace.model.errors import (
    CorruptBatch,
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RequestError,
    UnsupportedCompression,
    UnsupportedMessageFormat,
)
from headrace.records.batch import batch_crc, parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.records.record import decode_records

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CONFIG = LogConfig()
COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact"}))


def records(*values: str, key: bytes | None = b"k", timestamp: int = NOW_MS) -> list[NewRecord]:
    return [NewRecord(timestamp + number, key, value.encode()) for number, value in enumerate(values)]


def produced(batch: bytes) -> memoryview:
    return memoryview(bytearray(batch))


def with_byte(at: int, value: int) -> memoryview:
    batch = bytearray(build_batch(records("a")))
    batch[at] = value
    return memoryview(batch)


def test_rule_31_a_batch_is_taken_as_it_came() -> None:
    for codec in Codec:
        batch = build_batch(records("a", "b"), codec=codec)
        admitted = admit(produced(batch), CONFIG, NOW_MS)
        assert (bytes(admitted.batch), admitted.append_time_ms) == (batch, -1)


REFUSED: list[tuple[str, Callable[[], memoryview], type[RequestError], ErrorCode]] = [
    ("magic 0", lambda: with_byte(16, 0), UnsupportedMessageFormat, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 1", lambda: with_byte(16, 1), UnsupportedMessageFormat, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 3", lambda: with_byte(16, 3), CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
    ("a wrong checksum", lambda: with_byte(17, 0xAB), CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
    ("a flipped record", lambda: with_byte(65, 0xFF), CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
    ("half a batch", lambda: produced(build_batch(records("a")))[:-1], CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
    ("nothing", lambda: produced(b""), CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
    ("two batches", lambda: produced(2 * build_batch(records("a"))), InvalidRecord, ErrorCode.INVALID_RECORD),
    (
        "a control batch",
        lambda: produced(
            build_marker_batch(EndMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp=NOW_MS)
        ),
        InvalidRecord,
        ErrorCode.INVALID_RECORD,
    ),
]


@pytest.mark.parametrize(("make", "error", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_rule_26_and_27_what_is_no_good_batch_is_refused(
    make: Callable[[], memoryview], error: type[RequestError], code: ErrorCode
) -> None:
    with pytest.raises(error) as refused:
        admit(make(), CONFIG, NOW_MS)
    assert refused.value.code == code


def test_rule_27_the_size_limit_is_on_the_batch() -> None:
    batch = build_batch(records("x" * 500))
    admit(produced(batch), replace(CONFIG, max_message_bytes=len(batch)), NOW_MS)
    with pytest.raises(MessageTooLarge):
        admit(produced(batch), replace(CONFIG, max_message_bytes=len(batch) - 1), NOW_MS)


def test_rule_27_the_size_limit_is_on_what_would_be_written() -> None:
    """A batch that is small only because it is compressed does not get in by the topic's own codec."""
    batch = build_batch(records("x" * 50_000), codec=Codec.ZSTD)
    assert len(batch) < 1_000
    config = replace(CONFIG, compression_type="uncompressed", max_message_bytes=10_000)
    with pytest.raises(MessageTooLarge):
        admit(produced(batch), config, NOW_MS)


@pytest.mark.parametrize("codec", list(Codec))
def test_rule_27_records_of_a_compacted_topic_need_a_key(codec: Codec) -> None:
    batch = build_batch([*records("a"), *records("no key", key=None), *records("b")], codec=codec)
    with pytest.raises(InvalidRecord) as refused:
        admit(produced(batch), COMPACTED, NOW_MS)
    assert [index for index, _ in refused.value.record_errors] == [1]
    admit(produced(batch), CONFIG, NOW_MS)


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@pytest.mark.parametrize("sent", list(Codec))
def test_rule_31_the_topics_codec_wins(sent: Codec, wanted: str) -> None:
    batch = build_batch(records("a" * 100, "b" * 100), codec=sent)
    admitted = admit(produced(batch), replace(CONFIG, compression_type=wanted), NOW_MS)
    expected = Codec.NONE if wanted == "uncompressed" else Codec[wanted.upper()]
    assert admitted.header.codec == expected
    assert parse_header(admitted.batch) == admitted.header
    assert batch_crc(admitted.batch) == admitted.header.crc
    assert [record.value for record in decode_records(admitted.batch)] == [b"a" * 100, b"b" * 100]
    if sent == expected:
        assert bytes(admitted.batch) == batch, "what fits is kept as it came"


def test_rule_31_a_codec_that_does_not_exist_is_refused() -> None:
    from headrace.records.builder import sealed

    header = parse_header(build_batch(records("a")))._replace(attributes=5)
    with pytest.raises(UnsupportedCompression):
        admit(produced(sealed(header, b"whatever")), CONFIG, NOW_MS)


def test_rule_31_a_bomb_does_not_go_off_when_the_topic_wants_another_codec() -> None:
    bomb = build_batch(records("\0" * 20_000_000), codec=Codec.ZSTD)
    with pytest.raises(RequestError):
        admit(produced(bomb), replace(CONFIG, compression_type="gzip"), NOW_MS)


def test_rule_28_log_append_time_is_the_brokers_and_has_a_right_checksum() -> None:
    batch = build_batch(records("a", "b", timestamp=5))
    admitted = admit(produced(batch), replace(CONFIG, timestamp_type="LogAppendTime"), NOW_MS)
    assert (admitted.append_time_ms, admitted.header.max_timestamp) == (NOW_MS, NOW_MS)
    assert admitted.header.uses_log_append_time
    assert batch_crc(admitted.batch) == admitted.header.crc
    assert {record.timestamp for record in decode_records(admitted.batch)} == {NOW_MS}


def test_rule_28_a_producer_does_not_choose_the_timestamp_type() -> None:
    """A CreateTime topic keeps the producer's times; a flag that says otherwise is not the producer's to set."""
    header = parse_header(build_batch(records("a")))
    batch = bytearray(build_batch(records("a")))
    from headrace.records.builder import sealed

    flagged = sealed(header._replace(attributes=0x08), bytes(batch[61:]))
    with pytest.raises(InvalidTimestamp):
        admit(produced(flagged), CONFIG, NOW_MS)


@pytest.mark.parametrize(("ahead_ms", "is_taken"), [(HOUR_MS, True), (HOUR_MS + 1, False), (10 * HOUR_MS, False)])
def test_rule_28_times_too_far_ahead_are_refused(ahead_ms: int, is_taken: bool) -> None:
    batch = produced(build_batch(records("a", timestamp=NOW_MS + ahead_ms)))
    if is_taken:
        admit(batch, CONFIG, NOW_MS)
    else:
        with pytest.raises(InvalidTimestamp) as refused:
            admit(batch, CONFIG, NOW_MS)
        assert refused.value.code == ErrorCode.INVALID_TIMESTAMP


def test_rule_28_times_too_far_back_are_refused_record_by_record() -> None:
    config = replace(CONFIG, timestamp_before_max_ms=HOUR_MS)
    batch = build_batch([*records("a"), *records("old", timestamp=NOW_MS - HOUR_MS - 1), *records("b")])
    with pytest.raises(InvalidTimestamp) as refused:
        admit(produced(batch), config, NOW_MS)
    assert [index for index, _ in refused.value.record_errors] == [1]
    admit(produced(build_batch(records("a", timestamp=NOW_MS - HOUR_MS))), config, NOW_MS)
    admit(produced(build_batch(records("very old", timestamp=0))), CONFIG, NOW_MS)


@pytest.mark.parametrize(
    ("config", "size", "codec", "long"),
    [
        (CONFIG, 10 * LOOKED_INTO_ON_LOOP_BYTES_MAX, Codec.ZSTD, False),  # nobody looks into it
        (COMPACTED, LOOKED_INTO_ON_LOOP_BYTES_MAX // 2, Codec.NONE, False),
        (COMPACTED, 2 * LOOKED_INTO_ON_LOOP_BYTES_MAX, Codec.NONE, True),
        (COMPACTED, 10, Codec.ZSTD, True),  # it may hold anything
        (replace(CONFIG, compression_type="lz4"), 2 * LOOKED_INTO_ON_LOOP_BYTES_MAX, Codec.NONE, True),
        (replace(CONFIG, timestamp_before_max_ms=1000), 2 * LOOKED_INTO_ON_LOOP_BYTES_MAX, Codec.NONE, True),
    ],
)
def test_a_batch_takes_long_where_many_records_are_looked_into(
    config: LogConfig, size: int, codec: Codec, long: bool
) -> None:
    batch = build_batch([NewRecord(NOW_MS, b"key", bytes(size))], codec=codec)
    assert needs_thread(memoryview(batch), config) is long


def test_the_topics_level_is_used_when_a_batch_is_compressed_again() -> None:
    text = b"".join(b"%d " % (number * number) for number in range(5_000))
    sizes = [
        len(admit(produced(build_batch([NewRecord(NOW_MS, b"key", text)])), config, NOW_MS).batch)
        for config in (
            replace(CONFIG, compression_type="gzip", compression_gzip_level=1),
            replace(CONFIG, compression_type="gzip", compression_gzip_level=9),
        )
    ]
    assert sizes[0] > sizes[1]
