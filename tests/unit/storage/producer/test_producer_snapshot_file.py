"""Producer snapshots: Kafka's bytes, nothing but CorruptLog from bad ones, and which files are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.producer.producer_snapshot_file import (
    SnapshotRow,
    decode_snapshot,
    encode_snapshot,
    newest_snapshot,
    remove_snapshots,
    remove_stray_snapshots,
    snapshot_offsets,
    snapshot_path,
)

DIRECTORY = "data/t-0"

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
rows = st.builds(SnapshotRow, int64, int16, int32, int64, int32, int64, int32, int64)


@pytest.fixture
def files() -> MemoryFiles:
    memory = MemoryFiles()
    memory.make_dir(DIRECTORY)
    return memory


def write_snapshot(files: MemoryFiles, offset: int, data: bytes) -> None:
    files.replace(snapshot_path(DIRECTORY, offset), data)


def row(producer_id: int = 1) -> SnapshotRow:
    return SnapshotRow(producer_id, 0, 9, 109, 9, 1_700_000_000_000, -1, -1)


def test_the_bytes_are_those_that_kafka_writes() -> None:
    # Written by Kafka 4.3.0: a producer within a transaction, and one of which only a marker is known.
    data = bytes.fromhex(
        "0001 39126f6f 00000002"
        "00000000000003e8 0003 00000029 000000000000002c 00000004 0000018bcfe56800 00000005 0000000000000028"
        "00000000000003e9 0000 ffffffff ffffffffffffffff 00000000 0000018bcfe56801 ffffffff ffffffffffffffff"
    )
    expected = [
        SnapshotRow(1000, 3, 41, 44, 4, 1_700_000_000_000, 5, 40),
        SnapshotRow(1001, 0, -1, -1, 0, 1_700_000_000_001, -1, -1),
    ]
    assert decode_snapshot(data) == expected
    assert encode_snapshot(expected) == data


@given(st.lists(rows, max_size=20))
def test_what_was_written_is_read(written: list[SnapshotRow]) -> None:
    assert decode_snapshot(encode_snapshot(written)) == written


@given(st.binary(max_size=120))
def test_random_bytes_are_a_corrupt_log_and_nothing_else(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_snapshot(data)


@given(st.lists(rows, max_size=3), st.data())
def test_one_flipped_bit_is_noticed(written: list[SnapshotRow], data: st.DataObject) -> None:
    damaged = bytearray(encode_snapshot(written))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptLog):
        decode_snapshot(bytes(damaged))


@given(st.lists(rows, min_size=1, max_size=3), st.data())
def test_half_a_snapshot_is_noticed(written: list[SnapshotRow], data: st.DataObject) -> None:
    whole = encode_snapshot(written)
    with pytest.raises(CorruptLog):
        decode_snapshot(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_the_newest_readable_snapshot_not_past_the_bound_is_found(files: MemoryFiles) -> None:
    for offset in (10, 20, 30):
        write_snapshot(files, offset, encode_snapshot([row(offset)]))
    assert newest_snapshot(files, DIRECTORY, at_most=29) == (20, [row(20)], None)
    assert newest_snapshot(files, DIRECTORY, at_most=9) is None
    assert newest_snapshot(files, DIRECTORY, at_most=19, at_least=10) == (10, [row(10)], None)
    assert newest_snapshot(files, DIRECTORY, at_most=19, at_least=11) is None


def test_an_unreadable_snapshot_is_removed_and_the_one_before_it_is_taken(files: MemoryFiles) -> None:
    write_snapshot(files, 10, encode_snapshot([row()]))
    write_snapshot(files, 20, encode_snapshot([row()])[:-1])
    assert newest_snapshot(files, DIRECTORY, at_most=100) == (10, [row()], None)
    assert snapshot_offsets(files, DIRECTORY) == [10]


def test_other_files_are_not_taken_for_snapshots(files: MemoryFiles) -> None:
    for name in ("00000000000000000007.log", "x.snapshot", "00000000000000000007.snapshot.deleted"):
        files.replace(f"{DIRECTORY}/{name}", b"")
    assert snapshot_offsets(files, DIRECTORY) == []


def test_snapshots_outside_the_log_are_removed(files: MemoryFiles) -> None:
    for offset in (0, 10, 20, 30):
        write_snapshot(files, offset, encode_snapshot([]))
    remove_snapshots(files, DIRECTORY, before=10, after=20)
    assert snapshot_offsets(files, DIRECTORY) == [10, 20]


@pytest.mark.parametrize(
    ("there", "bases", "kept"),
    [
        pytest.param([0, 5, 10, 12], [0, 10], [0, 10, 12], id="the one of a clean stop stays"),
        pytest.param([0, 5, 10, 12, 15], [0, 10], [0, 10, 15], id="but only the newest of those"),
        pytest.param([3, 10], [0, 10], [10], id="strays between segments go"),
        pytest.param([3, 7], [], [7], id="without segments the newest stays"),
    ],
)
def test_strays_are_removed(files: MemoryFiles, there: list[int], bases: list[int], kept: list[int]) -> None:
    for offset in there:
        write_snapshot(files, offset, encode_snapshot([]))
    remove_stray_snapshots(files, DIRECTORY, bases)
    assert snapshot_offsets(files, DIRECTORY) == kept
