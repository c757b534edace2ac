"""The record codecs of other clients read what we build, and we read what they build, with every codec."""

import warnings
from types import SimpleNamespace
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import cramjam
import pytest

from headrace.records.batch import parse_header, produced_batch
from headrace.records.builder import NewRecord, build_batch, recompress, with_log_append_time
from headrace.records.compaction_filter import filter_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.records.record import Record, decode_records

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_records

T0 = 1_700_000_000_000
RECORDS = [
    NewRecord(T0, b"key", b"value", (("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", None))),
    NewRecord(T0 - 5_000, None, b"no key"),
    NewRecord(T0 + 70_000, b"gone", None),
    NewRecord(T0, b"", b""),
    *(NewRecord(T0 + n, b"key-%d" % n, b"%d" % n * (n % 40), (("n", b"%d" % n),)) for n in range(500)),
    NewRecord(T0, b"big", bytes(range(256)) * 1_000),
]


@pytest.fixture(autouse=True)
def kafka_python_finds_a_snappy_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python looks for python-snappy, whose only back end is the cramjam that is here anyway."""
    snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    monkeypatch.setattr(kafka.codec, "snappy", snappy)


READERS = {
    "kafka-python": kafka_records.DefaultRecordBatch,
    "aiokafka, compiled": aiokafka_records.DefaultRecordBatch,
    "aiokafka, Python": aiokafka_records._DefaultRecordBatchPy,
}
BUILDERS = {
    "kafka-python": kafka_records.DefaultRecordBatchBuilder,
    "aiokafka, compiled": aiokafka_records.DefaultRecordBatchBuilder,
    "aiokafka, Python": aiokafka_records._DefaultRecordBatchBuilderPy,
}


def read_with(reader: Any, batch: bytes) -> list[Record]:
    theirs = reader(bytearray(batch) if reader is kafka_records.DefaultRecordBatch else batch)
    assert theirs.validate_crc()
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
        for record in theirs
    ]


def build_with(builder: Any, codec: Codec) -> bytes:
    theirs = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=123,
        producer_epoch=4,
        base_sequence=5,
        batch_size=1 << 24,
    )
    for index, record in enumerate(RECORDS):
        assert theirs.append(index, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(theirs.build())


def ours(base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + n, *record[:3], tuple(record.headers)) for n, record in enumerate(RECORDS)]


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("codec", list(Codec))
def test_others_read_what_we_build(reader: Any, codec: Codec):
    assert read_with(reader, build_batch(RECORDS, base_offset=1_000, codec=codec)) == ours(1_000)


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=list(BUILDERS))
@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_what_others_build(builder: Any, codec: Codec):
    batch = build_with(builder, codec)
    header = produced_batch(memoryview(batch))
    assert decode_records(batch, header) == ours()
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (123, 4, 5)
    assert header.codec == codec
    assert header.is_transactional


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=list(BUILDERS))
def test_uncompressed_batches_are_the_same_bytes_as_theirs(builder: Any):
    theirs = bytearray(build_with(builder, Codec.NONE))
    leader_epoch = parse_header(theirs).leader_epoch  # outside the checksum; clients differ
    assert theirs == build_batch(
        RECORDS,
        producer_id=123,
        producer_epoch=4,
        base_sequence=5,
        transactional=True,
        leader_epoch=leader_epoch,
    )


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("codec", list(Codec))
def test_others_read_what_we_recompress(reader: Any, codec: Codec):
    batch = build_with(aiokafka_records.DefaultRecordBatchBuilder, Codec.GZIP)
    assert read_with(reader, recompress(batch, None, codec)) == ours()


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("codec", list(Codec))
def test_others_read_what_compaction_leaves(reader: Any, codec: Codec):
    batch = build_batch(RECORDS, base_offset=50, codec=codec)
    filtered = filter_batch(
        batch, None, lambda offset, key, is_tombstone: offset % 2 == 0, delete_horizon_ms=T0 + 86_400_000
    )
    assert filtered is not None
    assert parse_header(filtered).has_delete_horizon
    assert read_with(reader, filtered) == ours(50)[::2]


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_others_see_log_append_time(reader: Any):
    batch = bytearray(build_batch(RECORDS))
    with_log_append_time(batch, T0 + 1)
    assert {record.timestamp for record in read_with(reader, bytes(batch))} == {T0 + 1}


def test_kafka_python_reads_our_markers():
    for kind in ControlType:
        batch = build_marker_batch(EndMarker(kind, 3), producer_id=1, producer_epoch=0, timestamp=T0)
        theirs = kafka_records.DefaultRecordBatch(bytearray(batch))
        assert theirs.is_control_batch
        (marker,) = theirs
        assert (marker.abort, marker.commit) == (kind is ControlType.ABORT, kind is ControlType.COMMIT)
