import pytest

from headrace.testing import SimClock


def test_time_stands_still_until_it_is_moved():
    clock = SimClock(wall_ms=500, monotonic_ms=7)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (500, 7)
    clock.advance_ms(10)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (510, 17)


def test_stepping_the_wall_clock_back_leaves_deadlines_alone():
    clock = SimClock(wall_ms=500, monotonic_ms=7)
    clock.step_wall_ms(-400)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (100, 7)


def test_time_does_not_pass_backwards():
    with pytest.raises(ValueError):
        SimClock().advance_ms(-1)
