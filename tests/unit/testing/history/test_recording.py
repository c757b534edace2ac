import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing.history import (
    Assign,
    Begin,
    Crash,
    Ended,
    Ending,
    Event,
    History,
    NotSent,
    Poll,
    Seen,
    Send,
    Sent,
    Subscribe,
    TopicPartition,
    read_history,
)
from headrace.testing.history.events import from_line, to_line

names = st.text(max_size=10)
numbers = st.integers(0, 2**63)
places = st.builds(TopicPartition, names, st.integers(0, 2**31))
seen = st.builds(Seen, places, numbers, numbers)
EVENTS = st.one_of(
    st.builds(Send, names, places, numbers),
    st.builds(Sent, names, numbers, st.none() | numbers),
    st.builds(NotSent, names, numbers),
    st.builds(Poll, names, st.lists(seen).map(tuple)),
    st.builds(Assign, names, st.lists(places).map(tuple)),
    st.builds(Subscribe, names, st.lists(names).map(tuple)),
    st.builds(Begin, names),
    st.builds(Ending, names, st.booleans()),
    st.builds(Ended, names, st.booleans()),
    st.builds(Crash, names),
)


@given(EVENTS)
def test_an_event_is_the_same_after_it_was_written_and_read(event: Event):
    line = to_line(event)
    assert "\n" not in line
    assert from_line(line) == event
    assert type(from_line(line)) is type(event)


def test_a_history_is_in_its_file_as_soon_as_it_is_recorded(tmp_path: Path):
    history = History(tmp_path / "a")
    history.record(Begin("a"))
    assert read_history([tmp_path / "a"]) == [Begin("a")] == history.events
    history.close()


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path):
    with History(tmp_path / "a") as history:
        history.record(Begin("a"))
    with open(tmp_path / "a", "a") as file:
        file.write(to_line(Crash("a"))[:5])
    with History(tmp_path / "b") as history:
        history.record(Begin("b"))
    assert read_history([tmp_path / "a", tmp_path / "b"]) == [Begin("a"), Begin("b")]


@pytest.mark.parametrize("first", [0, 1000])
def test_threads_never_get_the_same_value(first: int):
    history = History(first_value=first)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(history.new_value() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(first, first + 2000))
