"""The map of keys: the last offset of each, within its memory."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cleaner.offset_map import ENTRY_BYTES, SHARDS, SHARDS_PER_SLICE, OffsetMap


@given(st.lists(st.binary(max_size=3)))
def test_it_knows_the_last_offset_of_each_key(written: list[bytes]) -> None:
    keys = OffsetMap()
    expected = {}
    for offset, key in enumerate(written):
        assert keys.put(key, offset)
        expected[key] = offset
    assert {key: keys.get(key) for key in expected} == expected
    assert len(keys) == len(expected)
    assert keys.latest == len(written) - 1


def test_an_unknown_key_was_never_seen() -> None:
    assert OffsetMap().get(b"x") == -1


def test_when_it_is_full_only_known_keys_are_taken() -> None:
    keys = OffsetMap(bytes_max=2 * (ENTRY_BYTES + 1))
    assert keys.put(b"a", 0)
    assert keys.put(b"b", 1)
    assert not keys.put(b"c", 2)
    assert keys.get(b"c") == -1
    assert keys.latest == 1
    assert keys.put(b"a", 3)
    assert keys.latest == 3


def test_it_takes_no_more_memory_than_it_is_given() -> None:
    bytes_max = 8 * 1024 * 1024
    keys = OffsetMap(bytes_max)
    tracemalloc.start()
    try:
        offset = 0
        while keys.put(b"key-%d" % offset, 10**9 + offset):
            offset += 1
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bytes_max / 2 < used < bytes_max


def test_it_is_let_go_in_slices() -> None:
    keys = OffsetMap()
    keys.put(b"a", 1)
    assert sum(1 for _ in keys.clear()) == SHARDS // SHARDS_PER_SLICE
