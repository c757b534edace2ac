"""Ranges, limits and the JSON of the checkpoint: arithmetic that no broker is needed for."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.reader.offsets import (
    MARKER,
    OffsetRange,
    encode,
    ends_of,
    ids_of,
    is_marker,
    limited,
    ranges_between,
    split,
    starts_in,
    tasks,
)
from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
unhurried = settings(deadline=None)  # deadlines say more about a busy machine than about the code
backlogs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 10_000)),
    min_size=1,
)


def test_a_limit_is_shared_in_proportion_and_starves_nobody():
    ends = limited({A0: 0, A1: 100, B0: 5}, {A0: 990, A1: 109, B0: 6}, 100)
    assert ends == {A0: 99, A1: 101, B0: 6}


@unhurried
@given(backlogs, st.integers(1, 5000))
def test_limits_hold_and_always_progress(backlog, rows_max):
    starts = {one: start for one, (start, _) in backlog.items()}
    ends = {one: start + waiting for one, (start, waiting) in backlog.items()}
    cut = limited(starts, ends, rows_max)
    taken = sum(cut[one] - starts[one] for one in cut)
    assert all(starts[one] <= cut[one] <= ends[one] for one in ends)
    assert taken <= rows_max + len(ends)
    assert all(cut[one] > starts[one] for one in ends if ends[one] > starts[one])


@unhurried
@given(backlogs, st.one_of(st.none(), st.integers(1, 50)), st.one_of(st.none(), st.integers(1, 3000)))
def test_tasks_cover_every_offset_once(backlog, parts_min, rows_max):
    starts = {one: start for one, (start, _) in backlog.items()}
    ends = {one: start + waiting for one, (start, waiting) in backlog.items()}
    ranges = ranges_between(starts, ends)
    pieces = split(ranges, parts_min=parts_min, rows_max=rows_max)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(one.end == following.start for one, following in pairwise(own))
    assert all(piece.size > 0 for piece in pieces)
    if rows_max:
        assert all(piece.size <= rows_max for piece in pieces)


@unhurried
@given(backlogs, st.one_of(st.none(), st.integers(1, 50)), st.one_of(st.none(), st.integers(1, 3000)))
def test_small_neighbours_are_one_tasks_work_and_nothing_else_changes(backlog, parts_min, rows_max):
    starts = {one: start for one, (start, _) in backlog.items()}
    ends = {one: start + waiting for one, (start, waiting) in backlog.items()}
    ranges = ranges_between(starts, ends)
    pieces, packs = (how(ranges, parts_min=parts_min, rows_max=rows_max) for how in (split, tasks))
    assert [piece for pack in packs for piece in pack] == pieces
    assert all(len(pack) == 1 or sum(piece.size for piece in pack) <= min(rows_max or 1000, 1000) for pack in packs)
    if parts_min:
        assert len(packs) == len(pieces)


def test_three_rows_in_each_of_twelve_partitions_are_one_task():
    places = [TopicPartition("a", index) for index in range(12)]
    assert len(tasks([OffsetRange(place, 0, 3) for place in places])) == 1
    assert len(tasks([OffsetRange(place, 0, 400) for place in places])) == 6


def test_a_big_partition_is_cut_into_more_tasks_than_a_small_one():
    pieces = split([OffsetRange(A0, 0, 900), OffsetRange(A1, 0, 100)], parts_min=10)
    assert [piece.partition for piece in pieces].count(A0) == 9
    assert len(pieces) == 10


def test_offsets_survive_json():
    offset = encode({A0: 5, A1: 7, B0: 0}, {"a": "x", "b": "y"}, {A1: 2})
    back = json.loads(json.dumps(offset))
    assert ends_of(back) == {A0: 5, A1: 7, B0: 0}
    assert starts_in(back) == {A1: 2}
    assert ids_of(back) == {"a": "x", "b": "y"}
    assert not is_marker(back)
    assert is_marker(MARKER)


def test_the_connectors_own_offsets_are_understood():
    connectors = {"a": {"0": 5}}
    assert ends_of(connectors) == {A0: 5}
    assert (starts_in(connectors), ids_of(connectors)) == ({}, {})


def test_a_strange_checkpoint_is_refused():
    with pytest.raises(InvalidConfig, match="another source"):
        ends_of({"logOffset": 3})
