"""Ids of events: what a client sends back is what it was sent, and stays small."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.api.rest.messages import OFFSET_MAX, PARTITION_MAX
from headrace.api.rest.sse import (
    EVENT_ID_BYTES_MAX,
    GROUP_ID_BYTES_MAX,
    GroupPositions,
    TopicPositions,
    event_id,
    parse_event_id,
)

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,8}", fullmatch=True)
PLACES = st.tuples(TOPICS, st.integers(0, 5) | st.integers(0, PARTITION_MAX))


@given(st.dictionaries(PLACES, st.integers(0, OFFSET_MAX), max_size=30))
def test_positions_are_read_back_from_their_id(positions: dict[tuple[str, int], int]) -> None:
    assert parse_event_id(event_id(positions)) == positions


@given(st.text(alphabet="t:,0129٣-", max_size=20))
def test_foreign_text_is_refused_or_read(text: str) -> None:
    try:
        positions = parse_event_id(text)
    except ValueError:
        return
    assert parse_event_id(event_id(positions)) == positions


def test_group_id_names_the_latest_partitions_only() -> None:
    positions = GroupPositions()
    topic = "t" * 249
    ids = [positions.moved((topic, partition), OFFSET_MAX) for partition in range(800)]
    assert max(map(len, ids)) <= GROUP_ID_BYTES_MAX
    named = parse_event_id(ids[-1])
    assert sorted(partition for _, partition in named) == list(range(800 - len(named), 800))
    assert [positions.get((topic, partition)) for partition in (0, 800)] == [OFFSET_MAX, -1]


def test_topic_id_names_a_thousand_partitions_at_any_offset() -> None:
    positions = TopicPositions("t" * 249, [OFFSET_MAX] * 1_000)
    assert len(positions.id()) <= EVENT_ID_BYTES_MAX
    last = positions.moved(("t" * 249, 999), 7)
    assert parse_event_id(last)["t" * 249, 999] == 7
