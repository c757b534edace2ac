"""The records of `__consumer_offsets`: Kafka's bytes, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.coordinator import CoordinatorRecord
from headrace.core.group.model import ClassicGroup, GroupState, Member, Protocol
from headrace.core.group.records import (
    NO_TOPIC_ID,
    OffsetAndMetadata,
    OffsetKey,
    group_record,
    offset_record,
    read_group,
    read_group_key,
    read_offset,
    read_offset_key,
    record_kind,
)
from headrace.model.errors import CorruptLog
from headrace.model.ids import TopicPartition

SHORT = st.text(max_size=8)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
TOPIC_ID = bytes(range(1, 17))
TOPIC_IDS = st.one_of(st.just(NO_TOPIC_ID), st.binary(min_size=16, max_size=16))
NOTES = st.one_of(st.just(""), SHORT, st.text(min_size=60, max_size=300))
KNOWN = st.tuples(INT64, INT32, NOTES, INT64, st.just(-1), TOPIC_IDS).map(lambda fields: OffsetAndMetadata(*fields))
# Written by `MessageUtil.toVersionPrefixedBytes(version, new OffsetCommitValue()...)` of Apache Kafka 4.3.0, the class
# `org.apache.kafka.coordinator.group.generated.OffsetCommitValue` of kafka-group-coordinator-4.3.0.jar, run with a JVM.
KAFKA_VALUES = [
    (OffsetAndMetadata(5, -1, "n", 258), "0000 0000000000000005 0001 6e 0000000000000102"),
    (OffsetAndMetadata(5, -1, "n", 258, 300), "0001 0000000000000005 0001 6e 0000000000000102 000000000000012c"),
    (OffsetAndMetadata(5, -1, "n", 258), "0002 0000000000000005 0001 6e 0000000000000102"),
    (OffsetAndMetadata(5, 2, "n", 258), "0003 0000000000000005 00000002 0001 6e 0000000000000102"),
    (OffsetAndMetadata(5, 2, "n", 258), "0004 0000000000000005 00000002 02 6e 0000000000000102 00"),
    (OffsetAndMetadata(5, -1, "", 258), "0004 0000000000000005 ffffffff 01 0000000000000102 00"),
    (
        OffsetAndMetadata(5, 2, "n", 258, -1, TOPIC_ID),
        "0004 0000000000000005 00000002 02 6e 0000000000000102 01 00 10 0102030405060708090a0b0c0d0e0f10",
    ),
    (
        OffsetAndMetadata(5, 2, "", 258, -1, TOPIC_ID),
        "0004 0000000000000005 00000002 01 0000000000000102 01 00 10 0102030405060708090a0b0c0d0e0f10",
    ),
    (
        OffsetAndMetadata(5, 2, "\u00e9" * 3, 258, -1, TOPIC_ID),
        "0004 0000000000000005 00000002 07 c3a9c3a9c3a9 0000000000000102 01 00 10 0102030405060708090a0b0c0d0e0f10",
    ),
    (
        OffsetAndMetadata(5, 2, "x" * 127, 258, -1, TOPIC_ID),  # the first length that takes two bytes
        f"0004 0000000000000005 00000002 8001 {'78' * 127} 0000000000000102 01 00 10 0102030405060708090a0b0c0d0e0f10",
    ),
]


def member(**more: object) -> Member:
    values = {
        "member_id": "m-1",
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "protocols": (Protocol("range", b"S"),),
        "assignment": b"A",
    }
    return Member(**{**values, **more})  # type: ignore[arg-type]


def test_an_offset_key_has_the_bytes_that_kafka_writes() -> None:
    record = offset_record(OffsetKey("g", TopicPartition("t", 1)), OffsetAndMetadata(5, 2, "n", 258))
    assert record.key == bytes.fromhex("0001 0001 67 0001 74 00000001")
    assert offset_record(OffsetKey("g", TopicPartition("t", 1)), None) == CoordinatorRecord(record.key, None)


@pytest.mark.parametrize(("committed", "value"), KAFKA_VALUES)
def test_offset_value_of_kafka_is_read(committed: OffsetAndMetadata, value: str) -> None:
    assert read_offset(bytes.fromhex(value), 7) == committed._replace(record_offset=7)


@pytest.mark.parametrize(("committed", "value"), [row for row in KAFKA_VALUES if row[1].startswith("0004")])
def test_offset_value_has_the_bytes_that_kafka_writes(committed: OffsetAndMetadata, value: str) -> None:
    assert offset_record(OffsetKey("g", TopicPartition("t", 1)), committed).value == bytes.fromhex(value)


def test_unknown_tagged_fields_of_an_offset_are_skipped() -> None:
    start = "0004 0000000000000005 00000002 01 0000000000000102"
    topic_id = f"00 10 {TOPIC_ID.hex()}"
    known = OffsetAndMetadata(5, 2, "", 258)
    assert read_offset(bytes.fromhex(f"{start} 02 {topic_id} 07 01 ff")) == known._replace(topic_id=TOPIC_ID)
    assert read_offset(bytes.fromhex(f"{start} 01 07 10 {TOPIC_ID.hex()}")) == known
    assert read_offset(bytes.fromhex(f"{start} 01 07 01 ff")) == known


def test_equal_topic_ids_that_are_read_are_one_object() -> None:
    record = offset_record(OffsetKey("g", TopicPartition("t", 1)), OffsetAndMetadata(5, 2, "", 258, -1, TOPIC_ID))
    assert record.value is not None
    first, second = read_offset(bytes(bytearray(record.value))), read_offset(bytes(bytearray(record.value)))
    assert first.topic_id is second.topic_id


def test_an_offset_with_an_end_of_its_own_has_the_older_bytes() -> None:
    record = offset_record(OffsetKey("g", TopicPartition("t", 1)), OffsetAndMetadata(5, 2, "", 1, 3))
    assert record.value == bytes.fromhex("0001 0000000000000005 0000 0000000000000001 0000000000000003")


def test_a_group_has_the_bytes_that_kafka_writes() -> None:
    group = ClassicGroup(
        group_id="g",
        state=GroupState.STABLE,
        state_since_ms=7,
        generation=3,
        protocol_type="consumer",
        protocol="range",
        leader="m-1",
        members={"m-1": member()},
    )
    record = group_record("g", group)
    assert record.key == bytes.fromhex("0002 0001 67")
    assert record.value == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000003 0005 72616e6765 0003 6d2d31 0000000000000007 00000001"
        "0003 6d2d31 ffff 0001 63 0002 2f68 00004e20 00002710 00000001 53 00000001 41"
    )
    assert read_group("g", record.value) == group


@given(SHORT, SHORT, INT32, KNOWN)
def test_offsets_are_read_as_they_were_written(
    group: str, topic: str, partition: int, known: OffsetAndMetadata
) -> None:
    key = OffsetKey(group, TopicPartition(topic, partition))
    record = offset_record(key, known)
    assert record.value is not None
    assert (record_kind(record), read_offset_key(record.key), read_offset(record.value)) == (1, key, known)


@given(SHORT, st.lists(SHORT, unique=True, max_size=3), st.one_of(st.none(), SHORT), st.binary(max_size=9))
def test_groups_are_read_as_they_were_written(name: str, ids: list[str], instance: str | None, share: bytes) -> None:
    members = {one: member(member_id=one, instance_id=instance, assignment=share) for one in ids}
    group = ClassicGroup(
        group_id=name,
        state=GroupState.STABLE if ids else GroupState.EMPTY,
        generation=1,
        protocol_type="consumer",
        protocol="range" if ids else None,
        leader=ids[0] if ids else None,
        members=members,
    )
    record = group_record(name, group)
    assert record.value is not None
    assert (record_kind(record), read_group_key(record)) == (2, name)
    assert read_group(name, record.value) == group


@pytest.mark.parametrize("version", [0, 1, 2])
def test_groups_that_older_brokers_wrote_are_read(version: int) -> None:
    value = bytes.fromhex(f"000{version} 0000 00000004 ffff ffff")
    value += bytes.fromhex("0000000000000007") if version >= 2 else b""
    value += bytes.fromhex("00000001 0001 6d 0001 63 0001 68")
    value += bytes.fromhex("00000009") if version >= 1 else b""
    value += bytes.fromhex("00000008 00000000 00000000")
    group = read_group("g", value)
    assert (group.generation, group.state_since_ms) == (4, 7 if version >= 2 else -1)
    assert group.members["m"].session_timeout_ms == 8
    assert group.members["m"].rebalance_timeout_ms == (9 if version >= 1 else 8)


FLEXIBLE = bytes.fromhex("0004 0000000000000005 00000002 01 0000000000000102")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00\x03",
        b"\x00\x05" + bytes(30),
        b"\x00\x03" + bytes(11) + b"\x00\x09",
        b"\x00\x04" + bytes(30),  # null where the metadata must be
        FLEXIBLE,
        FLEXIBLE + b"\x01\x00\x10" + bytes(15),
        FLEXIBLE + b"\x01\x00\x08" + bytes(8),
        FLEXIBLE + b"\xff\xff\xff\xff\xff\x01",
    ],
)
def test_damaged_records_are_not_guessed_at(value: bytes) -> None:
    with pytest.raises(CorruptLog):
        read_offset(value)


def test_a_record_without_a_kind_belongs_to_nobody() -> None:
    assert record_kind(CoordinatorRecord(b"\x00", None)) == -1
