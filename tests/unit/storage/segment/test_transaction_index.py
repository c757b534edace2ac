"""The index of aborted transactions: Kafka's bytes, and the same answers as walking through all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.segment.transaction_index import READ_ENTRIES, AbortedTxn, TxnIndex

PATH = "data/t-0/00000000000000000000.txnindex"


def index_with(*txns: AbortedTxn, files: MemoryFiles | None = None) -> TxnIndex:
    index = TxnIndex(files or MemoryFiles(), PATH)
    for txn in txns:
        index.append(txn)
    return index


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedTxn]:
    """Aborted transactions as a log would have them: first offsets in any order, markers ascending."""
    markers = sorted(draw(st.sets(st.integers(10, 400), max_size=30)))
    taken = set(markers)  # where a marker stands there is no record
    firsts = [
        draw(st.integers(max(0, marker - 80), marker - 1).filter(lambda first: first not in taken))
        for marker in markers
    ]
    return [
        AbortedTxn(
            number,
            first,
            marker,
            # Stable up to the first transaction still open when this one ended.
            min(
                (f for f, m in zip(firsts, markers, strict=True) if m > marker and f < marker),
                default=marker + 1,
            ),
        )
        for number, (first, marker) in enumerate(zip(firsts, markers, strict=True))
    ]


def test_the_bytes_are_those_that_kafka_writes() -> None:
    files = MemoryFiles()
    index_with(AbortedTxn(1000, 5, 20, 3), AbortedTxn(1001, 3, 30, 31), files=files)
    assert files.read(PATH) == bytes.fromhex(
        "0000 00000000000003e8 0000000000000005 0000000000000014 0000000000000003"
        "0000 00000000000003e9 0000000000000003 000000000000001e 000000000000001f"
    )


def test_a_segment_without_aborted_transactions_has_no_file() -> None:
    files = MemoryFiles()
    index = TxnIndex(files, PATH)
    assert index.overlapping(0, 100) == ([], False)
    index.truncate(0)
    index.sync()
    index.close()
    assert not files.exists(PATH)


def test_entries_survive_closing() -> None:
    files = MemoryFiles()
    index_with(AbortedTxn(1, 5, 20, 3), files=files).close()
    again = TxnIndex(files, PATH)
    again.append(AbortedTxn(2, 6, 21, 22))
    assert list(again.entries()) == [AbortedTxn(1, 5, 20, 3), AbortedTxn(2, 6, 21, 22)]


@given(histories(), st.integers(0, 420), st.integers(0, 100))
def test_those_that_touch_a_range_are_found(txns: list[AbortedTxn], first: int, length: int) -> None:
    bound = first + length
    found, complete = index_with(*txns).overlapping(first, bound)
    assert found == [txn for txn in txns if txn.last_offset >= first and txn.first_offset < bound]
    if complete:
        assert any(txn.last_stable_offset >= bound for txn in txns)


def test_more_entries_than_one_read_holds_are_all_found() -> None:
    txns = [AbortedTxn(n, n * 10, n * 10 + 5, n * 10 + 6) for n in range(READ_ENTRIES * 2 + 3)]
    index = index_with(*txns)
    assert len(index) == len(txns)
    assert list(index.entries()) == txns
    assert index.overlapping(0, 10**9) == (txns, False)
    assert index.overlapping(5_000, 5_001) == ([txns[500]], True)


@given(histories(), st.integers(0, 420))
def test_truncation_forgets_markers_past_the_end(txns: list[AbortedTxn], end: int) -> None:
    index = index_with(*txns)
    index.truncate(end)
    kept = [txn for txn in txns if txn.last_offset < end]
    assert list(index.entries()) == kept
    index.append(AbortedTxn(99, end, end + 1, end + 2))
    assert list(index.entries())[:-1] == kept


def test_a_sound_index_passes_its_check() -> None:
    index_with(AbortedTxn(1, 5, 20, 3), AbortedTxn(2, 3, 30, 31)).check(base_offset=20)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="half an entry"),
        pytest.param(lambda data: data[34:] + data[:34], id="out of order"),
        pytest.param(lambda data: b"\0\1" + data[2:], id="another version"),
    ],
)
def test_a_damaged_index_is_corrupt(damage) -> None:
    files = MemoryFiles()
    index_with(AbortedTxn(1, 5, 20, 3), AbortedTxn(2, 3, 30, 31), files=files)
    files.replace(PATH, damage(files.read(PATH)))
    with pytest.raises(CorruptLog):
        TxnIndex(files, PATH).check(base_offset=0)


def test_an_index_of_another_segment_is_corrupt() -> None:
    with pytest.raises(CorruptLog):
        index_with(AbortedTxn(1, 5, 20, 3)).check(base_offset=21)


@given(st.binary(max_size=150))
def test_random_bytes_are_an_index_or_a_corrupt_log(data: bytes) -> None:
    files = MemoryFiles()
    files.replace(PATH, data)
    index = TxnIndex(files, PATH)
    try:
        index.check(base_offset=0)
    except CorruptLog:
        return
    assert len(list(index.entries())) == len(data) // 34
