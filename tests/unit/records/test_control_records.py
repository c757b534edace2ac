"""Markers: Kafka's bytes, one offset each, and what is not a marker."""

import pytest

from headrace.model.errors import CorruptBatch
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compaction_filter import filter_batch
from headrace.records.control import (
    ControlType,
    EndMarker,
    build_marker_batch,
    decode_marker,
    encode_marker,
    read_marker,
)

COMMIT = EndMarker(ControlType.COMMIT, 7)
ABORT = EndMarker(ControlType.ABORT, 2**31 - 1)


def a_control_batch(key: bytes | None, value: bytes | None) -> bytes:
    return build_batch([NewRecord(0, key, value)], control=True)


def test_a_commit_has_kafkas_bytes():
    assert encode_marker(COMMIT) == (bytes.fromhex("0000 0001"), bytes.fromhex("0000 00000007"))


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
def test_markers_come_back(marker: EndMarker):
    assert decode_marker(*encode_marker(marker)) == marker
    assert marker.commits is (marker.type is ControlType.COMMIT)


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
def test_rule_09_a_marker_batch_takes_one_offset(marker: EndMarker):
    batch = build_marker_batch(marker, producer_id=5, producer_epoch=6, timestamp=1_000, base_offset=88, leader_epoch=3)
    header = parse_header(batch)
    assert (header.base_offset, header.next_offset, header.record_count) == (88, 89, 1)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, -1)
    assert (header.leader_epoch, header.base_timestamp, header.max_timestamp) == (3, 1_000, 1_000)
    assert read_marker(batch, header) == marker


def test_a_newer_version_is_read_as_the_one_that_is_known():
    assert decode_marker(bytes.fromhex("0003 0001 ffff"), bytes.fromhex("0002 00000007 99")) == COMMIT


def test_control_records_of_other_kinds_are_no_markers():
    for type_number in (2, 3, 4, 5, 6, -1):
        key = b"\0\0" + type_number.to_bytes(2, "big", signed=True)
        assert read_marker(a_control_batch(key, b"whatever")) is None


def test_a_control_batch_that_compaction_emptied_has_no_marker():
    batch = build_marker_batch(COMMIT, producer_id=1, producer_epoch=0, timestamp=0)
    empty = filter_batch(batch, None, lambda *_: False, delete_horizon_ms=None, keep_empty=True)
    assert empty is not None
    assert read_marker(empty) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0\0\0", b""),
        (b"\xff\xff\0\1", bytes(6)),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", bytes(5)),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\1"),
    ],
)
def test_a_broken_marker_is_corrupt(key: bytes | None, value: bytes | None):
    with pytest.raises(CorruptBatch):
        read_marker(a_control_batch(key, value))


def test_a_batch_of_data_holds_no_marker():
    with pytest.raises(CorruptBatch):
        read_marker(build_batch([NewRecord(0, *encode_marker(COMMIT))]))
